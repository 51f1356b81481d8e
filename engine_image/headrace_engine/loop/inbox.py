"""Calls into the step thread: each runs there between two steps, in the order in which they came."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace_engine.errors import EngineError

log = logging.getLogger(__name__)
T = TypeVar("T")
_Call = tuple[Callable[[], Any], Future[Any]]


class EngineDeadError(EngineError):
    """The step thread ended; only a restart helps."""


class Inbox:
    """`call`, `post` and `wake` are for any thread, `run_next` for the step thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closed: str | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, which runs even if the caller is cancelled. Raises `EngineDeadError`."""
        future: Future[T] = Future()
        self._put((function, future))
        return await asyncio.wrap_future(future)

    def post(self, function: Callable[[], object]) -> None:
        """Run `function`; nobody waits for it."""
        self._put((function, Future()))

    def wake(self) -> None:
        """End a wait for the next call."""
        self._calls.put(None)

    def run_next(self, *, block: bool, timeout: float | None = None) -> bool:
        """Run the next call, if there is one; whether there may be more. Waits with `block`, `timeout` seconds.

        Raises `queue.Empty` when the time is over.
        """
        try:
            item = self._calls.get(block=block, timeout=timeout)
        except queue.Empty:
            if block:
                raise
            return False
        if item is None:
            return False
        _answer(*item)
        return True

    def close(self, why: str) -> None:
        """Refuse all calls that wait, and all to come."""
        self._closed = why
        self._refuse()

    def _put(self, item: _Call) -> None:
        self._calls.put(item)
        if self._closed is not None:
            self._refuse()

    def _refuse(self) -> None:
        while True:
            try:
                item = self._calls.get(block=False)
            except queue.Empty:
                return
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(EngineDeadError(self._closed or "the engine is shutting down"))


def _answer(function: Callable[[], Any], future: Future[Any]) -> None:
    # A caller that gave up has cancelled the future; its call still runs, as its abort follows.
    wanted = future.set_running_or_notify_cancel()
    try:
        value = function()
    except Exception as error:
        if not isinstance(error, EngineError):
            log.exception("a call into the engine failed")
        if wanted:
            future.set_exception(error)
    else:
        if wanted:
            future.set_result(value)
