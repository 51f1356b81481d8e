"""Processes that outlive the command that starts them. Each has a log, and a record by which it is stopped.

A record holds the process's start time beside its pid, and signals go through a pidfd that is opened before the start
time is compared: another process that has got the pid meanwhile is never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace_local.errors import LocalError
from headrace_local.layout import Slot
from headrace_local.process_id import ProcessId, boot_id

#: In the environment of every process of a slot, and so of its children: how `down` finds what a kill -9 left behind.
STATE_MARKER = "HEADRACE_LOCAL_STATE"
TAIL_LINES = 15
POLL_SECONDS = 0.05
KILL_SECONDS = 10.0
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT, signal.SIGCHLD)


class ProcessError(LocalError):
    """A process ended before it was ready, or was not ready in time. `detail` is the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start, and how to tell that it serves.

    `ready` checks the process itself (a health port, a file it writes) and returns at once. It has `ready_seconds` to
    become ready and `grace_seconds` to end after SIGTERM. `prefix` is a command that executes the rest of its command
    line in place of itself (`nsenter ... --`).
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool]
    ready_seconds: float = 60.0
    grace_seconds: float = 15.0
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What is on disk about a started process, enough to stop it."""

    name: str
    identity: ProcessId
    argv: tuple[str, ...]
    grace_seconds: float

    def dump(self) -> str:
        """The record as JSON."""
        fields = {"name": self.name, "argv": list(self.argv), "grace_seconds": self.grace_seconds}
        identity = {
            "pid": self.identity.pid,
            "start_ticks": self.identity.start_ticks,
            "boot_id": self.identity.boot_id,
        }
        return json.dumps(fields | identity, indent=1)

    @classmethod
    def load(cls, text: str) -> Record:
        """Read what `dump` wrote; ValueError or KeyError if it is something else."""
        data = json.loads(text)
        identity = ProcessId(int(data["pid"]), int(data["start_ticks"]), str(data["boot_id"]))
        return cls(str(data["name"]), identity, tuple(data["argv"]), float(data["grace_seconds"]))


class Processes:
    """The processes of one slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def start(self, spec: ProcessSpec) -> Record:
        """Start it and wait until it is ready. If it ends or is too slow, it is stopped and ProcessError raised."""
        record = self._spawn(spec)
        try:
            self._wait_ready(spec, record.identity)
        except BaseException:
            self.stop(record)
            raise
        return record

    def records(self) -> list[Record]:
        """Every record on disk, in the order of starting. Unreadable ones are left out."""
        found = []
        for path in self._slot.pids_dir.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append(Record.load(path.read_text()))
        return sorted(found, key=lambda record: (record.identity.start_ticks, record.identity.pid))

    def alive(self) -> dict[str, Record]:
        """The records of running processes, by name."""
        return {record.name: record for record in self.records() if record.identity.alive()}

    def stop(self, record: Record) -> None:
        """SIGTERM, SIGKILL after its grace period, then delete the record. LocalError if it does not end."""
        identity = record.identity
        identity.send(signal.SIGTERM)
        if not identity.wait(record.grace_seconds):
            identity.send(signal.SIGKILL)
            if not identity.wait(KILL_SECONDS):
                raise LocalError(
                    f"{record.name} (pid {identity.pid}) does not end, even after SIGKILL.",
                    why="It is stuck in the kernel, usually waiting for a mount or a disk that does not answer.",
                    todo=f"Look at /proc/{identity.pid}/stack, then run the command again.",
                )
        self._slot.pid_file(record.name).unlink(missing_ok=True)

    def stop_all(self, *, but: Collection[str] = ()) -> None:
        """Stop all running processes, newest first, except those named in `but`."""
        for record in reversed(self.records()):
            if record.name not in but:
                self.stop(record)

    def _spawn(self, spec: ProcessSpec) -> Record:
        slot = self._slot
        for folder in (slot.pids_dir, slot.logs_dir, slot.run_dir):
            folder.mkdir(parents=True, exist_ok=True)
        argv = [*spec.prefix, *spec.argv]
        environment = {**os.environ, **spec.env, STATE_MARKER: str(slot.state_dir)}
        pid = _spawn_detached(argv, environment, slot.log_file(spec.name))
        identity = ProcessId.of(pid) or ProcessId(
            pid, 0, boot_id()
        )  # it has ended already; no process has start time 0
        record = Record(spec.name, identity, tuple(argv), spec.grace_seconds)
        slot.pid_file(spec.name).write_text(record.dump())
        return record

    def _wait_ready(self, spec: ProcessSpec, identity: ProcessId) -> None:
        deadline = time.monotonic() + spec.ready_seconds
        log = self._slot.log_file(spec.name)
        while not spec.ready():
            if identity.wait(POLL_SECONDS):
                raise ProcessError(
                    f"{spec.name} ended before it was ready.",
                    why=f"The end of its log, {log}:",
                    detail=log_tail(log) or "(the log is empty)",
                    todo="Fix what the log complains about, then run `headrace local up` again.",
                )
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"{spec.name} was not ready within {spec.ready_seconds:.0f} s.",
                    why=f"It is still running. The end of its log, {log}:",
                    detail=log_tail(log) or "(the log is empty)",
                    todo="A busy machine may just need longer: try again. Otherwise the log says what is missing.",
                )


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log file, empty if there is none. Reads only the end of the file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 400 * lines))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def marked_processes(state_dir: Path) -> list[ProcessId]:
    """Every process of this machine started for the slot in `state_dir`, or by such a process.

    It has the marker in its environment, or its root is an overlay whose upper layer lies in `state_dir` (a container
    whose environment was cleared). Processes of other users that we may not inspect are left out.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if any(_has_marker(thread, state_dir) or _has_root_in(thread, state_dir) for thread in _threads(entry)):
            identity = ProcessId.of(int(entry.name))
            if identity is not None:
                found.append(identity)
    return found


def command_of(identity: ProcessId) -> str:
    """The command line of the process, for messages; empty when it has ended."""
    try:
        raw = Path(f"/proc/{identity.pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def _threads(entry: Path) -> Iterator[Path]:
    """The /proc folders that show a process's environment: those of its other threads if the first has ended."""
    yield entry
    with contextlib.suppress(OSError):
        if (entry / "statm").read_text().startswith("0 "):
            yield from entry.glob("task/*")


def _has_marker(entry: Path, state_dir: Path) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return f"{STATE_MARKER}={state_dir}".encode() in environment.split(b"\0")


def _has_root_in(entry: Path, state_dir: Path) -> bool:
    try:
        mounts = (entry / "mountinfo").read_text(errors="replace")
    except OSError:
        return False
    return any(f"upperdir={state_dir}/" in line and line.split(" ")[4] == "/" for line in mounts.splitlines())


def _spawn_detached(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start argv in its own session, with empty stdin and output to `log`; return its pid. ProcessError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            dict(environment),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET_SIGNALS,
        )
    except OSError as error:
        raise ProcessError(
            f"{argv[0]} can't be started.",
            why=str(error),
            todo="Check that the file exists and is executable (`headrace local binaries` lists them).",
        ) from error
