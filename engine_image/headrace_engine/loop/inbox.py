"""Calls into the step thread: each runs there between two steps, in the order in which they arrived."""

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
    """A queue of calls. Any thread may use `call`, `post` and `wake`; the step thread uses `run_next` and `close`."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closed: str | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, which runs even if the caller is cancelled. Raises `EngineDeadError`."""
        future: Future[T] = Future()
        self._put((function, future))
        return await asyncio.wrap_future(future)

    def post(self, function: Callable[[], object]) -> None:
        """Queue `function` without waiting for it; its result is dropped."""
        self._put((function, Future()))

    def wake(self) -> None:
        """End a wait for the next call."""
        self._calls.put(None)

    def run_next(self, *, block: bool, timeout: float | None = None) -> bool:
        """Run the next call, if there is one; return whether there may be more.

        With `block` it waits, at most `timeout` seconds, then raises `queue.Empty`.
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
        """Refuse all waiting and future calls with `EngineDeadError`."""
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
    # If the caller gave up, the future is cancelled; the call still runs, and the caller's abort comes after it.
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
