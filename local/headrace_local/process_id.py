"""One process for all time: a pid with the process's start time and the machine's boot."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace_local.runtime.inner.lives import life_of


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Pids are used again; (boot, pid, start time) is not. `start_ticks` counts clock ticks since that boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now, or None if there is none (a zombie counts as none)."""
        ended, start = life_of(pid) or (True, 0)
        return None if ended else cls(pid, start, boot_id())

    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not; if it is our child, it is reaped."""
        ended, start = life_of(self.pid) or (True, -1)
        if start != self.start_ticks or self.boot_id != boot_id():
            return False
        if ended:
            _reap(self.pid)
        return not ended

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for its end; False if it still runs then."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return True
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            poller.poll(max(0.0, seconds) * 1000)
        return not self.alive()

    def send(self, number: int) -> bool:
        """Send a signal; False if the process has ended."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            return True

    @contextlib.contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        """A descriptor of this very process, or None. Opened first, compared after: it can't be another's."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (ValueError, OSError):
            yield None
            return
        try:
            yield descriptor if self.alive() else None
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """A UUID that changes at every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # not our child: its parent collects it
        os.waitpid(pid, os.WNOHANG)
