"""Threads for slow work beside the event loop: tokenizing, templates, grammars, parsing and building large bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")
LONG_CHARS = 32 << 10  # work on more text than this goes to the other lane


class Executor(StrEnum):
    """Each lane is one thread with a queue: what is long waits for what is long, not what is short."""

    SHORT = "short"
    LONG = "long"
    GRAMMAR = "grammar"


class Executors:
    """The threads of a server."""

    def __init__(self) -> None:
        self._threads = {
            lane: ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"headrace-{lane}") for lane in Executor
        }

    async def run(self, function: Callable[[], T], *, lane: Executor) -> T:
        """The result of `function`, run in a lane."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[lane], function)

    async def run_sized(self, function: Callable[[], T], *, size: int) -> T:
        """The same, in the lane for work on `size` characters."""
        return await self.run(function, lane=Executor.LONG if size > LONG_CHARS else Executor.SHORT)

    async def unless_small(self, function: Callable[[], T], *, size: int) -> T:
        """At once if `size` is small, else in the long lane: a thread costs more than a little work."""
        return await self.run(function, lane=Executor.LONG) if size > LONG_CHARS else function()
