"""Blocking work in a daemon thread, which unlike an executor's never keeps the process from exiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon(function: Callable[[], T], *, name: str, seconds: float | None = None) -> T:
    """Run `function` in its own thread and return its result. `TimeoutError` after `seconds`, but it keeps running."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        value: T | None = None
        problem: BaseException | None = None
        try:
            value = function()
        except BaseException as error:
            problem = error
        try:
            loop.call_soon_threadsafe(settle, value, problem)
        except RuntimeError:
            return  # the event loop is closed: nothing waits for the result

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wait_for(done, seconds)
