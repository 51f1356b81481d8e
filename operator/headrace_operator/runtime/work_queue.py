"""A queue of keys: added any number of times, worked on once; never twice at once; failures come back later.

The design is Go's workqueue. A key is in `_order` (waiting), in `_working`, or in `_timers` (to be added later). A key
that is added while it is worked on is remembered in `_dirty` and waits again when its work is done, so no change is
missed and no key has two workers. All times are the loop's, so tests run under virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delay after the n-th failure in a row, seconds: `base` doubled each time, at most `limit`."""

    base: float = 0.5
    limit: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` (1, 2, ...) failures in a row."""
        return min(self.limit, self.base * 2.0 ** min(failures - 1, 30))


class WorkQueue(Generic[Key]):
    """See the module's docstring. Use it from one event loop only."""

    def __init__(self, *, backoff: Backoff | None = None, jitter: Callable[[], float] = random.random) -> None:
        self._backoff = backoff or Backoff()
        self._jitter = jitter
        self._order: dict[Key, float] = {}  # key -> when it began to wait; a dict keeps the order of arrival
        self._working: dict[Key, float] = {}
        self._dirty: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: Key) -> None:
        """Work on `key` as soon as possible."""
        self._cancel_timer(key)
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._order:
            self._order[key] = self._now()
            self._wakeup.set()

    def add_after(self, key: Key, delay: float) -> None:
        """Work on `key` after `delay` seconds, or sooner if something else asks for it."""
        if delay <= 0:
            self.add(key)
            return
        due = self._now() + delay
        timer = self._timers.get(key)
        if key in self._order or (timer is not None and timer.when() <= due):
            return
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_at(due, self.add, key)

    def add_resync(self, key: Key, period: float) -> None:
        """Work on `key` after `period` seconds, give or take a tenth, so that not all keys come at once."""
        self.add_after(key, period * (0.9 + 0.2 * self._jitter()))

    def retry(self, key: Key) -> float:
        """Work on `key` failed: add it again after a growing delay. Returns the delay in seconds."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key])
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: Key) -> None:
        """Work on `key` succeeded: its back-off starts over."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """The object is gone: nothing is due for `key` unless it is being worked on."""
        self._cancel_timer(key)
        self._failures.pop(key, None)
        self._order.pop(key, None)

    async def get(self) -> Key:
        """The next key; call `done` when its work is over."""
        while not self._order:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = next(iter(self._order))
        del self._order[key]
        self._working[key] = self._now()
        return key

    def done(self, key: Key) -> None:
        """Work on `key` has ended, successfully or not."""
        self._working.pop(key, None)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def close(self) -> None:
        """Cancel every key that is due later."""
        for key in list(self._timers):
            self._cancel_timer(key)

    @property
    def depth(self) -> int:
        """Number of keys waiting."""
        return len(self._order)

    def oldest(self) -> float:
        """Seconds for which the oldest key has waited or been worked on; 0 if there is none."""
        since = [*self._order.values(), *self._working.values()]
        return self._now() - min(since) if since else 0.0

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
