"""Limits on request bodies: their size, and how long a half-sent one may hold a connection."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_engine.http.errors import ApiError, answer

MAX_BODY_BYTES = 16 << 20  # some forty times the text of 128 Ki tokens
STALL_SECONDS = 60.0  # between two pieces of a body
# A refused body this small has mostly arrived already: it is read and dropped, and the connection kept.
DROPPED_BYTES = 64 << 10
# Closing a connection while the client is still sending resets it, and the client may never see why. So the refusal
# goes out at once, and then a little more is read before closing.
LINGER_SECONDS, LINGER_BYTES = 2.0, 16 << 20


class BodyLimit:
    """ASGI: 413 for a body above `max_bytes`, without reading all of it; 408 for one that stalls."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES, stall_seconds: float = STALL_SECONDS) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the call under the limits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = int(headers.get("content-length", "0"))  # the HTTP parser let only digits pass
        endless = "transfer-encoding" in headers
        body = _Body(receive, send, self._max_bytes, self._stall_seconds, read=not (declared or endless))
        body.droppable = not endless and declared <= DROPPED_BYTES
        if declared > self._max_bytes:
            await answer(too_large(self._max_bytes))(scope, receive, body.send)
            return
        await self._app(scope, body.receive, body.send)


def too_large(limit: int) -> ApiError:
    """A 413 that names the limit in bytes."""
    return ApiError(413, f"the body exceeds {limit} bytes: send a shorter prompt", code="body_too_large")


@dataclass(slots=True)
class _Body:
    _receive: Receive
    _send: Send
    _max_bytes: int
    _stall_seconds: float
    read: bool  # to its end
    droppable: bool = False
    closing: bool = False
    size: int = 0

    async def receive(self) -> Message:
        """The next piece of the body, or the client's disconnect. Raises `ApiError` 408, 413."""
        if self.read:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._stall_seconds)
        except TimeoutError as error:
            self.droppable = False
            raise ApiError(
                408, f"the body stopped after {self.size} bytes: nothing came for {self._stall_seconds:g} s",
                code="body_timeout",
            ) from error  # fmt: skip
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.read = not message.get("more_body", False)
            if self.size > self._max_bytes:
                raise too_large(self._max_bytes)
        return message

    async def send(self, message: Message) -> None:
        """A piece of the answer. If it comes before a long body's end, the connection closes after the answer."""
        if message["type"] == "http.response.start":
            self.closing = not (self.read or self.droppable)
            if self.closing:
                MutableHeaders(scope=message)["connection"] = "close"
        elif self.closing and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _linger(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                left, more = LINGER_BYTES, True
                while left > 0 and more:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
