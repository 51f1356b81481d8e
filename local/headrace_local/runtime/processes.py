"""Processes by pid and start time: alive or not, waiting, signals, what they use (from /proc)."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from headrace_local.runtime.inner.lives import start_ticks

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid with its start time in clock ticks since boot: never mistaken for a later process of the same pid."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        try:
            return self.pid > 0 and start_ticks(self.pid) == self.start
        except ProcessLookupError:
            return False

    def signal(self, number: int) -> bool:
        """Send a signal; False if the process has ended."""
        descriptor = self._open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False if it has not ended in that time."""
        descriptor = self._open()
        if descriptor is None:
            return True
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(max(0.0, seconds) * 1000))
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        """A pidfd of it, or None if it has ended. The check comes after the opening: what is open cannot change."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (ValueError, OSError):
            return None
        if self.alive:
            return descriptor
        os.close(descriptor)
        return None


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What processes use together. Memory that processes share is counted once for each."""

    cpu_nanoseconds: int = 0
    rss_bytes: int = 0
    processes: int = 0

    def __add__(self, other: ResourceUsage) -> ResourceUsage:
        return ResourceUsage(
            self.cpu_nanoseconds + other.cpu_nanoseconds,
            self.rss_bytes + other.rss_bytes,
            self.processes + other.processes,
        )


def boot_id() -> str:
    """Changes at every boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def process_namespace(pid: int) -> str:
    """Names the process namespace that the process lives in; ProcessLookupError if there is no such process."""
    try:
        return str((_PROC / str(pid) / "ns/pid").readlink())
    except FileNotFoundError:
        raise ProcessLookupError(3, "no such process", str(pid)) from None


def usage_by_namespace() -> dict[str, ResourceUsage]:
    """What the processes of this machine use now, by `process_namespace`."""
    totals: dict[str, ResourceUsage] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = process_namespace(int(entry.name))
            totals[namespace] = totals.get(namespace, ResourceUsage()) + _usage(entry)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is somebody else's
    return totals


def _usage(entry: Path) -> ResourceUsage:
    stat = (entry / "stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = sum(int(value) for value in fields[11:15])  # its own and its waited-for children's, user and system
    return ResourceUsage(ticks * 1_000_000_000 // _TICKS_PER_SECOND, int(fields[21]) * _PAGE, 1)
