"""How to start the node's processes: namespaces, runtime, kubelet, device plugin, Service proxy.

Three are our own modules, run by the same Python; each shows that it serves by a `<name>.ready` file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_local.binaries import Binaries
from headrace_local.isolation import Isolation, holder_argv
from headrace_local.layout import Slot
from headrace_local.node import write_kubelet_files
from headrace_local.nodespace import holder_command
from headrace_local.pki import Pki
from headrace_local.probe import answers
from headrace_local.processes import ProcessSpec, Record

NODESPACE = "nodespace"
RUNTIME = "runtime"
KUBELET = "kubelet"
DEVICE_PLUGIN = "device_plugin"
SERVICE_PROXY = "service_proxy"


def runtime_spec(slot: Slot, *, prefix: Sequence[str]) -> ProcessSpec:
    """The CRI runtime; its containers outlive it."""
    return _own_module(slot, RUNTIME, prefix=prefix)


def device_plugin_spec(slot: Slot, gpus: int, *, prefix: Sequence[str]) -> ProcessSpec:
    """The device plugin that offers `gpus` pretend GPUs.

    It is started before the kubelet and waits for it, so it counts as ready at once; the node's GPUs show whether it
    has registered.
    """
    spec = _own_module(slot, DEVICE_PLUGIN, "--gpus", str(gpus), prefix=prefix)
    return dataclasses.replace(spec, ready=lambda: True)


def service_proxy_spec(slot: Slot) -> ProcessSpec:
    """The userspace Service proxy."""
    return _own_module(slot, SERVICE_PROXY)


def kubelet_spec(slot: Slot, pki: Pki, binaries: Binaries, *, prefix: Sequence[str]) -> ProcessSpec:
    """The kubelet, with the configuration that `node` writes."""
    url = f"http://127.0.0.1:{slot.kubelet_healthz_port}/healthz"
    argv = list(write_kubelet_files(slot, pki))
    return ProcessSpec(
        KUBELET, [binaries["kubelet"], *argv], ready=lambda: answers(url), prefix=prefix, env=slot.environment
    )


def nodespace_spec(slot: Slot, isolation: Isolation) -> ProcessSpec:
    """The process that keeps the node's namespaces open; ready once it has made its mounts and become `sleep`."""

    def ready() -> bool:
        try:
            record = Record.load(slot.pid_file(NODESPACE).read_text())
            return Path(f"/proc/{record.identity.pid}/comm").read_text().strip() == "sleep"
        except (OSError, ValueError, KeyError):
            return False

    argv = holder_argv(isolation, holder_command(slot))
    return ProcessSpec(NODESPACE, argv, ready=ready, ready_seconds=20, env=slot.environment)


def _own_module(slot: Slot, name: str, *arguments: str, prefix: Sequence[str] = ()) -> ProcessSpec:
    # -P: modules must not be imported from the folder in which `headrace local up` is called.
    argv = [sys.executable, "-P", "-m", f"headrace_local.{name}", "--slot", str(slot.number), *arguments]
    slot.ready_file(name).unlink(missing_ok=True)  # a kill -9 leaves it behind
    return ProcessSpec(name, argv, ready=slot.ready_file(name).exists, env=slot.environment, prefix=prefix)
