"""The runtime's records on disk, from which it finds its pods again after being killed at any moment.

runtime/cursor                       the next pod address to try
runtime/sandboxes/ID.json            one SandboxRecord
runtime/containers/ID/record.json    one ContainerRecord (written once)
runtime/containers/ID/launch.json    the launcher's plan
runtime/containers/ID/state.json     who runs it (written by the launcher)
runtime/containers/ID/exit.json      how it ended (written by the launcher)
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_local.runtime.inner.files import write_json
from headrace_local.runtime.plans import LaunchPlan


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One pod: the kubelet's settings, its address, the boot in which it was made. Times in nanoseconds."""

    id: str
    name: str
    uid: str
    namespace: str
    attempt: int
    hostname: str
    address: str
    host_network: bool
    log_directory: str
    created_at: int
    boot: str
    ready: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    dns_servers: tuple[str, ...] = ()
    dns_searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SandboxRecord:
        """The record that `dataclasses.asdict` wrote."""
        lists = {name: tuple(content[name]) for name in ("dns_servers", "dns_searches", "dns_options")}
        return cls(**{**content, **lists})


@dataclass(frozen=True, slots=True)
class MountRecord:
    """A mount as requested by the kubelet."""

    container_path: str
    host_path: str
    readonly: bool
    recursive_readonly: bool = False


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One container as it was created. `stop_signal` is a signal number, `created_at` in nanoseconds."""

    id: str
    sandbox: str
    name: str
    attempt: int
    image: str
    image_ref: str
    created_at: int
    log_path: str
    stop_signal: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    mounts: tuple[MountRecord, ...] = ()

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ContainerRecord:
        """The record that `dataclasses.asdict` wrote."""
        mounts = tuple(MountRecord(**mount) for mount in content["mounts"])
        return cls(**{**content, "mounts": mounts, "groups": tuple(content["groups"])})


class ContainerRecords:
    """The records of one slot, in memory and on disk. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._sandboxes_dir.mkdir(parents=True, exist_ok=True)
        self._containers_dir.mkdir(parents=True, exist_ok=True)
        self._sandboxes = {
            path.stem: SandboxRecord.from_json(_read(path)) for path in self._sandboxes_dir.glob("*.json")
        }
        self._containers = {
            path.parent.name: ContainerRecord.from_json(_read(path))
            for path in self._containers_dir.glob("*/record.json")
        }

    @property
    def lock(self) -> threading.RLock:
        """Hold it to make several calls atomic."""
        return self._lock

    # -- sandboxes -----------------------------------------------------------------------------------------------

    def sandboxes(self) -> list[SandboxRecord]:
        """Every sandbox not removed, including stopped ones."""
        with self._lock:
            return list(self._sandboxes.values())

    def sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """The sandbox, or None."""
        with self._lock:
            return self._sandboxes.get(sandbox_id)

    def put_sandbox(self, record: SandboxRecord) -> None:
        """Add or replace a record."""
        with self._lock:
            write_json(str(self._sandboxes_dir / f"{record.id}.json"), dataclasses.asdict(record))
            self._sandboxes[record.id] = record

    def drop_sandbox(self, sandbox_id: str) -> None:
        """Delete the record, if there is one."""
        with self._lock:
            self._sandboxes.pop(sandbox_id, None)
            (self._sandboxes_dir / f"{sandbox_id}.json").unlink(missing_ok=True)

    @property
    def cursor(self) -> int:
        """Where the search for a free pod address begins."""
        try:
            return int((self._folder / "cursor").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0

    @cursor.setter
    def cursor(self, value: int) -> None:
        write_json(str(self._folder / "cursor"), value)

    # -- containers ----------------------------------------------------------------------------------------------

    def containers(self, sandbox_id: str | None = None) -> list[ContainerRecord]:
        """Every container not removed, of one sandbox or of all."""
        with self._lock:
            return [record for record in self._containers.values() if sandbox_id in (None, record.sandbox)]

    def container(self, container_id: str) -> ContainerRecord | None:
        """The container, or None."""
        with self._lock:
            return self._containers.get(container_id)

    def folder(self, container_id: str) -> Path:
        """The folder of the container's files."""
        return self._containers_dir / container_id

    def put_container(self, record: ContainerRecord, plan: LaunchPlan) -> None:
        """Add a container, with the plan for its launcher."""
        with self._lock:
            folder = self.folder(record.id)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(str(folder / "launch.json"), plan)
            write_json(str(folder / "record.json"), dataclasses.asdict(record))
            self._containers[record.id] = record

    def launch_plan(self, container_id: str) -> LaunchPlan:
        """The launcher's plan, as `put_container` wrote it."""
        plan: LaunchPlan = json.loads((self.folder(container_id) / "launch.json").read_text(encoding="utf-8"))
        return plan

    def drop_container(self, container_id: str) -> None:
        """Delete its record and its files, if there are any."""
        with self._lock:
            self._containers.pop(container_id, None)
            folder = self.folder(container_id)
            if folder.exists():
                (folder / "record.json").unlink(
                    missing_ok=True
                )  # first, so that an interrupted removal leaves no record
                shutil.rmtree(folder)

    @property
    def _sandboxes_dir(self) -> Path:
        return self._folder / "sandboxes"

    @property
    def _containers_dir(self) -> Path:
        return self._folder / "containers"


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
