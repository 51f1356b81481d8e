"""Blocking work in a daemon thread: unlike an executor's, it never keeps the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon(function: Callable[[], T], *, name: str, seconds: float | None = None) -> T:
    """What `function` returns, run in a thread of its own. Raises `TimeoutError` after `seconds`; it then runs on."""
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
            return  # the event loop is closed: nobody waits

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wait_for(done, seconds)
