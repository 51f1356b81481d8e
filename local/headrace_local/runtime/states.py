"""The state of a container, from the files in its folder and /proc."""

from __future__ import annotations

import enum
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_local.process_id import ProcessId
from headrace_local.runtime.inner.files import write_json

#: Exit code of SIGKILL, reported when the launcher could not note the end (it was killed, or the machine went down).
UNSEEN_EXIT = 137


class ContainerPhase(enum.Enum):
    """The states that CRI knows."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended; `finished_at` in nanoseconds."""

    exit_code: int
    reason: str
    message: str
    finished_at: int


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container's current state. `init` is its first process, `supervisor` its launcher; times in nanoseconds."""

    phase: ContainerPhase
    started_at: int = 0
    init: ProcessId | None = None
    supervisor: ProcessId | None = None
    exit: ContainerExit | None = None


def read_state(folder: Path) -> ContainerState:
    """The state of the container in this folder. If its launcher died without noting the end, notes it."""
    found = _read(folder / "state.json")
    if found is None:
        return ContainerState(ContainerPhase.CREATED)
    started_at = found["started_at"]
    init, supervisor = (ProcessId(pid, start, found["boot"]) for pid, start in (found["init"], found["supervisor"]))
    if (ended := read_exit(folder)) is not None:
        return ContainerState(ContainerPhase.EXITED, started_at, init, supervisor, ended)
    if supervisor.alive():
        return ContainerState(ContainerPhase.RUNNING, started_at, init, supervisor)
    # Look again: the launcher may have noted the end just before it exited.
    ended = read_exit(folder) or note_unseen_exit(folder, "its launcher was killed, or the machine restarted")
    return ContainerState(ContainerPhase.EXITED, started_at, init, supervisor, ended)


def read_exit(folder: Path) -> ContainerExit | None:
    """How the container ended, or None if no end is noted."""
    found = _read(folder / "exit.json")
    return None if found is None else ContainerExit(**found)


def note_unseen_exit(folder: Path, message: str) -> ContainerExit:
    """Note an end, now, that the launcher could not note."""
    ended = ContainerExit(UNSEEN_EXIT, "Error", message, time.time_ns())
    content = {name: getattr(ended, name) for name in ("exit_code", "reason", "message", "finished_at")}
    write_json(str(folder / "exit.json"), content)
    return ended


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content
