"""The process as the HTTP side sees it: its phase, the engine once loaded, and the calls in flight."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from enum import StrEnum

from headrace_engine.engine import Engine
from headrace_engine.http.calls import CallRegistry, Clock
from headrace_engine.http.errors import unavailable
from headrace_engine.http.heartbeat import Heartbeat

LOADING_RETRY, DRAIN_RETRY = 5, 2  # seconds


class ServerPhase(StrEnum):
    """Phases of a server's life, in order."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class ServerState:
    """Phase, engine and calls of one server. Used by the event loop only."""

    def __init__(
        self, served_name: str, *, keep_content: bool = False, tool_call_parser: str = "auto",
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self.served_name = served_name
        self.tool_call_parser = tool_call_parser  # `headrace_engine.openai.tools.ToolFormat`, or auto
        self.phase = ServerPhase.LOADING
        self.engine: Engine | None = None
        self.calls = CallRegistry(keep_content=keep_content)
        self._clock = clock
        self._heartbeat: Heartbeat | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self, engine: Engine) -> None:
        """The engine is loaded and its loop runs."""
        self.engine = engine
        self._heartbeat = Heartbeat(engine, clock=self._clock)
        if self.phase is ServerPhase.LOADING:
            self.phase = ServerPhase.READY

    def drain(self) -> None:
        """Take no more calls."""
        self.phase = ServerPhase.DRAINING

    def loaded(self) -> Engine:
        """The engine. Raises `ApiError` 503 while it loads."""
        if self.engine is None:
            raise unavailable("the model is still loading", retry_after=LOADING_RETRY)
        return self.engine

    def accepting(self) -> Engine:
        """The engine for a new call. Raises `ApiError` 503 while it loads or drains."""
        if self.phase is ServerPhase.DRAINING:
            raise unavailable("the server is shutting down and takes no new requests", retry_after=DRAIN_RETRY)
        return self.loaded()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While entered, a drain waits for this call; entered once its body has arrived."""
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def drained(self) -> None:
        """Wait until no call is in flight."""
        await self._idle.wait()

    def not_live(self) -> str | None:
        """Why the process needs a restart, or None."""
        return None if self._heartbeat is None else self._heartbeat.problem(busy=bool(self._in_flight))

    def not_ready(self) -> str | None:
        """Why calls should go elsewhere, or None."""
        return f"phase {self.phase}" if self.phase is not ServerPhase.READY else self.not_live()
