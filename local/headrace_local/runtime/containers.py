"""Containers: created from a CRI request, started by a launcher, stopped, removed."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_local.runtime import spec
from headrace_local.runtime.errors import CriError, CriRefusedError, NotFoundError, WrongStateError
from headrace_local.runtime.fileview import Machine, plan_view
from headrace_local.runtime.images import ImagePolicy
from headrace_local.runtime.launch import Launchers, run_inside
from headrace_local.runtime.plans import CommandPlan, LaunchPlan
from headrace_local.runtime.records import (
    ContainerRecord,
    ContainerRecords,
    MountRecord,
    SandboxRecord,
)
from headrace_local.runtime.states import (
    ContainerPhase,
    ContainerState,
    note_unseen_exit,
    read_state,
)

log = logging.getLogger(__name__)

#: How long a killed container may take to end before we report an error.
_KILL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """What all containers of this node share: the machine's facts, the images, the images' variables."""

    machine: Machine
    images: ImagePolicy
    image_env: dict[str, str]


class Containers:
    """The containers of one node."""

    def __init__(self, records: ContainerRecords, setting: NodeSetting) -> None:
        self._records = records
        self._setting = setting
        self._launchers = Launchers()

    # -- looking -------------------------------------------------------------------------------------------------

    def get(self, container_id: str) -> ContainerRecord:
        """The container with this id; NotFoundError if there is none."""
        record = self._records.container(container_id)
        if record is None:
            raise NotFoundError(f"container {container_id} does not exist")
        return record

    def state(self, container_id: str) -> ContainerState:
        """The container's current state; NotFoundError if there is none."""
        self._launchers.reap()
        return read_state(self._records.folder(self.get(container_id).id))

    def everything(self) -> list[tuple[ContainerRecord, ContainerState]]:
        """Every container with its state."""
        self._launchers.reap()
        return [(record, read_state(self._records.folder(record.id))) for record in self._records.containers()]

    # -- acting --------------------------------------------------------------------------------------------------

    def create(self, sandbox: SandboxRecord, config: Any) -> ContainerRecord:
        """Create a container without starting it. CriRefusedError, WrongStateError, NotFoundError (image)."""
        if not sandbox.ready:
            raise WrongStateError(f"sandbox {sandbox.id} is stopped")
        image = self._setting.images.find(config.image.user_specified_image or config.image.image)
        user = spec.user_of(config.linux.security_context, image, _passwd())
        record = ContainerRecord(
            id=secrets.token_hex(32),
            sandbox=sandbox.id,
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            image=config.image.image,
            image_ref=image.id,
            created_at=time.time_ns(),
            log_path=_log_path(sandbox, config),
            stop_signal=spec.stop_signal(_signal_name(config)),
            uid=user.uid,
            gid=user.gid,
            groups=user.groups,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
            mounts=spec.mount_records(config),
        )
        self._records.put_container(record, self._plan(sandbox, config, record, user))
        return record

    def start(self, container_id: str) -> None:
        """Start a created container; CriError with the reason if its command cannot be run."""
        record = self.get(container_id)
        if self.state(container_id).phase is not ContainerPhase.CREATED:
            raise WrongStateError(f"container {container_id} was started already")
        self._launchers.start(self._records.folder(container_id))
        log.info("container %s of %s started", record.name, record.sandbox[:12])

    def stop(self, container_id: str, grace: float) -> None:
        """Send the stop signal, and kill it after `grace` seconds. Does nothing if it is unknown or has ended."""
        record = self._records.container(container_id)
        if record is None:
            return
        folder = self._records.folder(container_id)
        state = read_state(folder)
        if (
            state.phase is ContainerPhase.RUNNING
            and grace > 0
            and state.init is not None
            and state.supervisor is not None
        ):
            state.init.send(record.stop_signal)
            if state.supervisor.wait(grace):
                return
            log.info("container %s did not end within %g s of its stop signal: killing it", record.name, grace)
        kill(folder)

    def remove(self, container_id: str) -> None:
        """Kill it if it runs, and delete it. Does nothing if it is unknown."""
        if self._records.container(container_id) is not None:
            self.stop(container_id, 0)
            self._records.drop_container(container_id)
        self._launchers.reap()

    def execute(self, container_id: str, command: list[str], timeout: float | None) -> tuple[int, bytes, bytes]:
        """Run a command inside the container, as its user; returns exit code, stdout, stderr."""
        state = self.state(container_id)
        if state.phase is not ContainerPhase.RUNNING or state.init is None:
            raise WrongStateError(f"container {container_id} is not running")
        if not command:
            raise CriRefusedError("no command given")
        own = self._records.launch_plan(container_id)["command"]
        plan: CommandPlan = {**own, "argv": command}
        return run_inside({"pid": state.init.pid, "start": state.init.start_ticks, "command": plan}, timeout)

    def reopen_log(self, container_id: str) -> None:
        """Make the launcher open a new log file at the container's log path, after the kubelet moved the old one."""
        record, state = self.get(container_id), self.state(container_id)
        if state.phase is not ContainerPhase.RUNNING or state.supervisor is None:
            raise WrongStateError(f"container {container_id} is not running")
        state.supervisor.send(signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not Path(record.log_path).exists():
            if time.monotonic() > deadline:
                raise CriError(f"container {container_id} did not open {record.log_path} again within 5 s")
            time.sleep(0.01)

    # -- planning ------------------------------------------------------------------------------------------------

    def _plan(self, sandbox: SandboxRecord, config: Any, record: ContainerRecord, user: spec.User) -> LaunchPlan:
        security = config.linux.security_context
        mounts = [*record.mounts, *self._name_files(sandbox, record)]
        return {
            "folder": str(self._records.folder(record.id)),
            "log_path": record.log_path,
            "hostname": sandbox.hostname,
            "steps": plan_view(self._setting.machine, spec.view_request(config, user, tuple(mounts))),
            "command": {
                "argv": spec.command_line(config),
                "env": spec.environment(config, self._setting.image_env, sandbox.hostname),
                "cwd": config.working_dir or "/",
                "uid": user.uid,
                "gid": user.gid,
                "groups": list(user.groups),
                "capabilities": spec.capabilities(security),
                "no_new_privileges": security.no_new_privs,
                "honour_user": not self._setting.machine.mapped_root,
            },
        }

    def _name_files(self, sandbox: SandboxRecord, record: ContainerRecord) -> list[MountRecord]:
        """/etc/resolv.conf and /etc/hostname of the pod, unless the kubelet mounts them."""
        folder = self._records.folder(record.id)
        folder.mkdir(parents=True, exist_ok=True)
        contents = {
            "/etc/hostname": sandbox.hostname + "\n" if sandbox.hostname else "",
            "/etc/resolv.conf": _dns(sandbox),
        }
        asked = {mount.container_path for mount in record.mounts}
        made = []
        for target, content in contents.items():
            if content and target not in asked:
                source = folder / target.rpartition("/")[2]
                source.write_text(content, encoding="utf-8")
                made.append(MountRecord(target, str(source), readonly=False))
        return made


def kill(folder: Path) -> None:
    """Kill the container of this folder and make sure that its end is noted. CriError if it does not end."""
    state = read_state(folder)
    if state.phase is not ContainerPhase.RUNNING or state.supervisor is None:
        return
    # When the first process ends, so does its whole process namespace. If there is none yet, kill the launcher.
    if state.init is None or not state.init.send(signal.SIGKILL):
        state.supervisor.wait(1.0)
        state.supervisor.send(signal.SIGKILL)
    if not state.supervisor.wait(_KILL_SECONDS):
        raise CriError(f"container {folder.name} did not end within {_KILL_SECONDS:g} s of SIGKILL")
    if read_state(folder).exit is None:
        note_unseen_exit(folder, "killed while it started")


def _log_path(sandbox: SandboxRecord, config: Any) -> str:
    if not sandbox.log_directory or not config.log_path:
        return ""
    return str(Path(sandbox.log_directory) / config.log_path)


def _signal_name(config: Any) -> str:
    field = config.DESCRIPTOR.fields_by_name["stop_signal"]
    name: str = field.enum_type.values_by_number[config.stop_signal].name
    return name


def _dns(sandbox: SandboxRecord) -> str:
    lines = [f"nameserver {server}" for server in sandbox.dns_servers]
    if sandbox.dns_searches:
        lines.append("search " + " ".join(sandbox.dns_searches))
    if sandbox.dns_options:
        lines.append("options " + " ".join(sandbox.dns_options))
    return "\n".join(lines) + "\n" if lines else ""


def _passwd() -> str:
    return Path("/etc/passwd").read_text(encoding="utf-8", errors="replace")
