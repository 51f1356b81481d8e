"""What a cluster leaves on a machine (processes, mounts, ports): finding and removing it.

Works from what the kernel shows, not from our records, so it also finds what is left after a kill -9.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_local.layout import Slot
from headrace_local.process_id import ProcessId
from headrace_local.processes import KILL_SECONDS, command_of, marked_processes

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found: processes as (pid, command), mount points, ports as (purpose, number)."""

    processes: tuple[tuple[int, str], ...] = ()
    mounts: tuple[Path, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.mounts or self.ports)

    def lines(self) -> list[str]:
        """One line for each thing, for messages."""
        processes = [f"process {pid}: {command[:100]}" for pid, command in self.processes]
        return [*processes, *(f"mount {path}" for path in self.mounts), *(f"port {n} ({why})" for why, n in self.ports)]


def find_leftovers(slot: Slot, port_is_free: Callable[[int], bool] | None = None) -> Leftovers:
    """What is left of this slot. Ports are checked only with `port_is_free`."""
    processes = tuple((found.pid, command_of(found)) for found in marked_processes(slot.state_dir))
    ports = () if port_is_free is None else tuple(item for item in slot.ports.items() if not port_is_free(item[1]))
    return Leftovers(processes, tuple(mounts_under(slot.state_dir, _own_mounts())), ports)


def kill_marked(state_dir: Path) -> list[tuple[int, str]]:
    """SIGKILL every process that belongs to the slot; return (pid, command) of those that were found.

    Several rounds, because a process may start another while we look.
    """
    killed: list[tuple[int, str]] = []
    for _ in range(_ROUNDS):
        found = marked_processes(state_dir)
        if not found:
            break
        killed += [(identity.pid, command_of(identity)) for identity in found]
        _kill(found)
    return killed


def mounts_under(folder: Path, mounts: str) -> list[Path]:
    """The mount points at or below `folder` in the text of a /proc/*/mounts file, the innermost and newest first."""
    points = [Path(_unescape(line.split(" ")[1])) for line in mounts.splitlines()]
    return [point for point in reversed(points) if point == folder or folder in point.parents]


def unmount_under(folder: Path) -> list[Path]:
    """Unmount everything at or below the folder, busy mounts lazily; return what was unmounted."""
    return [p for p in mounts_under(folder, _own_mounts()) if _umount(p) or _umount(p, "--lazy")]


def remove_state(slot: Slot) -> None:
    """Delete the slot's files except its logs. Call it only when nothing is mounted below any more."""
    for path in slot.state_dir.iterdir() if slot.state_dir.is_dir() else ():
        if path == slot.logs_dir:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=_make_writable_and_retry)
        else:
            path.unlink(missing_ok=True)


def _kill(found: list[ProcessId]) -> None:
    for identity in found:
        with contextlib.suppress(PermissionError):
            identity.send(signal.SIGKILL)
    for identity in found:
        identity.wait(KILL_SECONDS)


def _own_mounts() -> str:
    return Path("/proc/self/mounts").read_text(errors="surrogateescape")


def _umount(point: Path, *options: str) -> bool:
    argv = ["umount", "--no-canonicalize", *options, str(point)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _unescape(field: str) -> str:
    """Undo the octal escapes of /proc/mounts (blank, tab, newline, backslash)."""
    for char in " \t\n\\":
        field = field.replace(f"\\{ord(char):03o}", char)
    return field


def _make_writable_and_retry(function: Callable[[str], object], path: str, _error: Any) -> None:
    # An overlay's work folder has mode 000, which its owner may change but not enter.
    parent = Path(path).parent
    with contextlib.suppress(OSError):
        parent.chmod(parent.stat().st_mode | stat.S_IRWXU)
        Path(path).chmod(stat.S_IRWXU)
    if function in (os.open, os.scandir, os.listdir):
        shutil.rmtree(path, ignore_errors=True)
        return
    function(path)
