"""Threads for work too slow for the event loop: tokenizing, templates, grammars, parsing and building large bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")
LONG_CHARS = 32 << 10  # work on more text than this goes to the long thread


class Executor(StrEnum):
    """One thread with a queue each, so that long work waits only for long work."""

    SHORT = "short"
    LONG = "long"
    GRAMMAR = "grammar"


class Executors:
    """The worker threads of a server."""

    def __init__(self) -> None:
        self._threads = {
            executor: ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"headrace-{executor}")
            for executor in Executor
        }

    async def run(self, function: Callable[[], T], *, executor: Executor) -> T:
        """The result of `function`, run in the thread of `executor`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[executor], function)

    async def run_sized(self, function: Callable[[], T], *, size: int) -> T:
        """The result of `function`, run in the short or the long thread by its `size` in characters."""
        return await self.run(function, executor=Executor.LONG if size > LONG_CHARS else Executor.SHORT)

    async def unless_small(self, function: Callable[[], T], *, size: int) -> T:
        """The result of `function`, run directly if `size` is small, as a thread would cost more; else as long work."""
        return await self.run(function, executor=Executor.LONG) if size > LONG_CHARS else function()
