"""The embedded cluster as a whole: `up`, `down`, `status`.

`up` starts the parts one by one, each once the one before it answers, and takes everything down again if one fails to
start. `down` works from any state: it stops what the records name, kills what else belongs to the slot, unmounts,
deletes, and then checks that nothing is left.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from headrace_local import binaries as programs
from headrace_local import control_plane, node_processes, node_setup
from headrace_local.binaries import Binaries
from headrace_local.control_plane import CONTROL_PLANE, port_is_free
from headrace_local.errors import LocalError
from headrace_local.isolation import Isolation, enter_argv
from headrace_local.layout import Slot
from headrace_local.leftovers import Leftovers, find_leftovers, kill_marked, remove_state, unmount_under
from headrace_local.node_processes import NODESPACE
from headrace_local.pki import Pki, pki_of, write_pki
from headrace_local.preflight import check_owner, preflight
from headrace_local.probe import answers, tls
from headrace_local.processes import Processes, ProcessSpec
from headrace_local.progress import QuietSteps, Steps
from headrace_local.prometheus import prometheus_spec
from headrace_local.runtime.stop import stop_all as stop_pods

DEFAULT_GPUS = 2


class SlotState(Enum):
    """State of a slot. BROKEN: some of it is there, but not all of it runs."""

    ABSENT = "absent"
    UP = "up"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process: `seconds` since its start, None if it does not run."""

    name: str
    pid: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """State of the cluster, its processes in the order of starting, and the number of pretend GPUs."""

    state: SlotState
    processes: tuple[ProcessStatus, ...] = ()
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class DownReport:
    """What `down` did: names of processes stopped, (pid, command) of those killed, mount points unmounted."""

    stopped: tuple[str, ...]
    killed: tuple[tuple[int, str], ...]
    unmounted: tuple[Path, ...]


def up(slot: Slot, *, gpus: int = DEFAULT_GPUS, steps: Steps | None = None) -> bool:
    """Bring the cluster up with that many pretend GPUs; False if it was up already.

    Remains of an earlier cluster in the slot are cleared away first. LocalError says which part failed and why, after
    everything started has been taken down again.
    """
    shown = steps or QuietSteps()
    with _locked(slot):
        state = status(slot).state
        if state is SlotState.UP:
            return False
        if state is SlotState.BROKEN:
            with shown.step(f"Clearing away the remains of an earlier cluster in slot {slot.number}"):
                _down(slot)
        with shown.step("Checking this machine"):
            isolation = preflight(slot, platform=sys.platform, is_free=port_is_free)
        binaries = programs.ensure(slot.cache_dir, os.environ, shown)
        try:
            _start_all(slot, binaries, gpus=gpus, isolation=isolation, steps=shown)
        except BaseException:
            with shown.step("Taking down what was started"):
                _down(slot)
            raise
    return True


def down(slot: Slot) -> DownReport:
    """Take the cluster down, whatever is left of it, if anything. LocalError lists what could not be removed."""
    with _locked(slot):
        return _down(slot)


def status(slot: Slot) -> Status:
    """The current state of the slot, from its records, /proc and the API server."""
    processes = Processes(slot)
    records, alive = processes.records(), processes.alive()
    found = tuple(
        ProcessStatus(
            record.name, record.identity.pid, _age(record.identity.start_ticks) if record.name in alive else None
        )
        for record in records
    )
    summary = _read_summary(slot)
    if summary is not None and set(summary["processes"]) <= set(alive) and _api_ready(slot):
        return Status(SlotState.UP, found, int(summary["gpus"]))
    state = SlotState.BROKEN if records or find_leftovers(slot) else SlotState.ABSENT
    return Status(state, found)


def _start_all(slot: Slot, binaries: Binaries, *, gpus: int, isolation: Isolation, steps: Steps) -> None:
    with steps.step("Making keys and certificates"):
        pki = write_pki(slot, now=dt.datetime.now(dt.UTC))  # noqa: TID251 - certificates are valid from now
    _start_control_plane(slot, pki, binaries, steps)
    _start_node(slot, pki, binaries, gpus=gpus, isolation=isolation, steps=steps)
    _start(slot, "Service proxy", node_processes.service_proxy_spec(slot), steps)
    _start(slot, "Prometheus", prometheus_spec(slot, pki, binaries), steps)
    names = [record.name for record in Processes(slot).records()]
    slot.summary_file.write_text(json.dumps({"gpus": gpus, "processes": names}))


def _start_control_plane(slot: Slot, pki: Pki, binaries: Binaries, steps: Steps) -> None:
    _start(slot, "etcd", control_plane.etcd_spec(slot, pki, binaries), steps)
    _start(slot, "API server", control_plane.apiserver_spec(slot, pki, binaries), steps)
    node_setup.grant_roles(slot)
    _start(slot, "Controller manager", control_plane.controller_manager_spec(slot, pki, binaries), steps)
    _start(slot, "Scheduler", control_plane.scheduler_spec(slot, pki, binaries), steps)


def _start_node(slot: Slot, pki: Pki, binaries: Binaries, *, gpus: int, isolation: Isolation, steps: Steps) -> None:
    _start(slot, "Namespaces of the node", node_processes.nodespace_spec(slot, isolation), steps)
    prefix = enter_argv(isolation, Processes(slot).alive()[NODESPACE].identity.pid)
    _start(slot, "Container runtime", node_processes.runtime_spec(slot, prefix=prefix), steps)
    if gpus:
        # Before the kubelet: devices registered before the node's first report are in it; later ones take 10 s.
        _start(slot, "Device plugin", node_processes.device_plugin_spec(slot, gpus, prefix=prefix), steps)
    _start(slot, "Kubelet", node_processes.kubelet_spec(slot, pki, binaries, prefix=prefix), steps)
    with steps.step(f"Node ready, with {gpus} pretend GPUs") as step:
        node_setup.wait_for_node(slot, pki, gpus=gpus, step=step)
        node_setup.label_node(slot, gpus=gpus)


def _start(slot: Slot, title: str, spec: ProcessSpec, steps: Steps) -> None:
    with steps.step(title):
        Processes(slot).start(spec)


def _down(slot: Slot) -> DownReport:
    if slot.state_dir.is_dir():
        check_owner(slot.state_dir, os.geteuid())
    processes = Processes(slot)
    stopped = tuple(processes.alive())
    # The pods end after the kubelet, which would start them again, and before the API server, which they may write to.
    processes.stop_all(but=CONTROL_PLANE)
    stop_pods(slot)
    processes.stop_all()
    killed = kill_marked(slot.state_dir)
    unmounted = unmount_under(slot.state_dir)
    left = find_leftovers(slot, port_is_free if stopped or killed else None)
    if left:
        raise _left_behind(slot, left)
    remove_state(slot)
    return DownReport(stopped, tuple(killed), tuple(unmounted))


def _left_behind(slot: Slot, left: Leftovers) -> LocalError:
    return LocalError(
        f"Slot {slot.number} is not completely down.",
        why="This could not be removed:",
        detail="\n".join(left.lines()),
        todo="Run `headrace local down` again, as the user who started it; busy mounts go when their users end.",
    )


def _api_ready(slot: Slot) -> bool:
    pki = pki_of(slot)
    try:
        return answers(f"{slot.apiserver_url}/readyz", tls(pki, pki.admin))
    except OSError:  # the certificates are gone
        return False


def _read_summary(slot: Slot) -> dict[str, Any] | None:
    try:
        data = json.loads(slot.summary_file.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and "processes" in data and "gpus" in data else None


def _age(start_ticks: int) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _locked(slot: Slot) -> Iterator[None]:
    """Hold the slot's lock, so that no other `up` or `down` works on it. LocalError if it is taken."""
    slot.lock_file.parent.mkdir(parents=True, exist_ok=True)
    with slot.lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(
                f"Another `headrace local up` or `down` is working on slot {slot.number}.",
                why=f"It holds {slot.lock_file}.",
                todo="Wait until it has finished, or use another slot: --slot.",
            ) from None
        yield
