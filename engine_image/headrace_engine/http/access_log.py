"""One structured log line for each HTTP call, and the answer's own headers. No prompts or outputs unless asked for.

The outermost ASGI layer: it also sets request ids, counts calls in flight, starts traces, notes 499 for a client that
left, and answers errors that no inner layer answered.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_engine.http.auth import OPEN_PATHS
from headrace_engine.http.calls import CLIENT_CLOSED, HttpCall
from headrace_engine.http.errors import answer, unexpected
from headrace_engine.http.state import ServerPhase, ServerState
from headrace_engine.http.tracing import Tracing, trace_id
from headrace_engine.logs import ACCESS

log = logging.getLogger(__name__)
access = logging.getLogger(ACCESS)
MAX_LOGGED_BODY = 64 << 10
MAX_LOGGED_PATH = 512
MAX_HEADER = 256
SAFE = " !#$&'()*+,/:;=?@[]~"  # allowed in a header's value; other characters are percent-encoded


class CallLog:
    """ASGI middleware that logs each call; see the module."""

    def __init__(self, app: ASGIApp, *, state: ServerState, tracing: Tracing | None = None) -> None:
        self._app = app
        self._state = state
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the call and write its line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        call = self._state.calls.begin(
            method=scope["method"],
            path=scope["raw_path"].decode("ascii", "replace")[:MAX_LOGGED_PATH],
            client=scope["client"][0] if scope.get("client") else "",
            request_id=headers.get("x-request-id"),
        )
        if self._tracing is not None and scope["path"] not in OPEN_PATHS:
            self._tracing.begin(call, headers)
        with contextlib.ExitStack() as stack:
            stack.callback(self._end, call, quiet=scope["path"] in OPEN_PATHS)
            exchange = _Exchange(call, self._state, receive, send, stack)
            await self._run(scope, exchange)

    async def _run(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            # Errors raised in a route are answered and logged by the inner layers: this one came from between layers.
            if not exchange.call.status:
                log.exception("unexpected error in %s %s", exchange.call.method, exchange.call.path)
                whole = answer(unexpected(error))
                await whole(scope, exchange.receive, exchange.send)

    def _end(self, call: HttpCall, *, quiet: bool) -> None:
        call.status = call.status or CLIENT_CLOSED
        self._state.calls.end(call)
        level = logging.DEBUG if quiet else logging.INFO
        if access.isEnabledFor(level):
            access.log(level, "%s", summary(call), extra=fields(call))
        call.forget_content()
        if call.span is not None and self._tracing is not None:
            self._tracing.end(call, self._state)


@dataclass(slots=True)
class _Exchange:
    """The messages of one call, passed between server and routes."""

    call: HttpCall
    state: ServerState
    _receive: Receive
    _send: Send
    _stack: contextlib.ExitStack
    _whole: bool = False  # the request's body has arrived
    _answered: bool = False

    async def receive(self) -> Message:
        """The client's next message. Once the body is complete, a drain waits for this call."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            if not self._answered and self.call.status < 400:
                self.call.status = CLIENT_CLOSED
        elif not self._whole:
            self._keep(message)
            self._whole = not message.get("more_body", False)
            if self._whole:
                self._stack.enter_context(self.state.counted())
        return message

    async def send(self, message: Message) -> None:
        """Pass a message to the client, with our headers added to the first."""
        if message["type"] == "http.response.start":
            self.call.status = self.call.status or message["status"]
            self._add_headers(MutableHeaders(scope=message))
        elif not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    def _keep(self, message: Message) -> None:
        if self.call.body is not None:
            self.call.body += message.get("body", b"")[: MAX_LOGGED_BODY - len(self.call.body)]

    def _add_headers(self, headers: MutableHeaders) -> None:
        call, engine = self.call, self.state.engine
        headers["x-request-id"] = call.request_id
        if call.config_generation is None and engine is not None:
            call.config_generation, call.revision = engine.loop.state.generation, engine.loop.state.revision
        if call.config_generation is not None:
            headers["x-headrace-generation"] = str(call.config_generation)
        if call.revision:
            headers["x-headrace-revision"] = quote(call.revision, safe=SAFE, errors="replace")[:MAX_HEADER]
        if self.state.phase is ServerPhase.DRAINING:
            headers["connection"] = "close"


def summary(call: HttpCall) -> str:
    """The log line's text, for people."""
    tokens = f", {call.prompt_tokens} + {call.output_tokens} tokens" if call.generations else ""
    return f"{call.method} {call.path} {call.status} in {call.seconds or 0:.3f} s{tokens}"


def fields(call: HttpCall) -> dict[str, Any]:
    """The log line's fields, for programs. Times in seconds."""
    line: dict[str, Any] = {
        "method": call.method, "path": call.path, "status": call.status, "seconds": _rounded(call.seconds),
        "request_id": call.request_id, "client": call.client, "key": call.key, "generation": call.config_generation,
        "revision": call.revision,
    }  # fmt: skip
    if call.error is not None:
        line["error"] = call.error
    if call.generations:
        line |= {
            "call_id": call.call_id, "ttft": _rounded(call.ttft), "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens, "output_tokens": call.output_tokens,
            "finish_reasons": call.finish_reasons,
        }  # fmt: skip
    if call.span is not None:
        line["trace_id"] = trace_id(call)
    if call.body is not None:
        line["body"] = call.body.decode("utf-8", "replace")
        line["outputs"] = ["".join(item.text or ()) for item in call.generations]
    return line


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
