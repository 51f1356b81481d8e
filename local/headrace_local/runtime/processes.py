"""What the processes of each process namespace use, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Sums over several processes. Shared memory is counted once for each process."""

    cpu_nanoseconds: int = 0
    rss_bytes: int = 0
    processes: int = 0

    def __add__(self, other: ResourceUsage) -> ResourceUsage:
        return ResourceUsage(
            self.cpu_nanoseconds + other.cpu_nanoseconds,
            self.rss_bytes + other.rss_bytes,
            self.processes + other.processes,
        )


def process_namespace(pid: int) -> str:
    """Identifies the process namespace of the process; ProcessLookupError if there is no such process."""
    try:
        return str((_PROC / str(pid) / "ns/pid").readlink())
    except FileNotFoundError:
        raise ProcessLookupError(3, "no such process", str(pid)) from None


def usage_by_namespace() -> dict[str, ResourceUsage]:
    """Current use of all processes of this machine, by `process_namespace`."""
    totals: dict[str, ResourceUsage] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = process_namespace(int(entry.name))
            totals[namespace] = totals.get(namespace, ResourceUsage()) + _usage(entry)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or belongs to another user
    return totals


def _usage(entry: Path) -> ResourceUsage:
    stat = (entry / "stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = sum(int(value) for value in fields[11:15])  # its own and its waited-for children's, user and system
    return ResourceUsage(ticks * 1_000_000_000 // _TICKS_PER_SECOND, int(fields[21]) * _PAGE, 1)
