"""The HTTP server under the routes: sockets, uvicorn without its signal handling, and limits on request heads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace_engine.errors import SettingsError
from headrace_engine.http.errors import invalid

KEEP_ALIVE_SECONDS = 75  # longer than a client's pool keeps an idle connection, else it meets a closed one
HEAD_SECONDS = 30.0  # to send a request's first line and headers
MAX_HEAD_BYTES = 64 << 10
BACKLOG = 2048


class Server(uvicorn.Server):
    """Uvicorn without its signal handling: the server process handles signals and drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class Protocol(H11Protocol):
    """HTTP/1.1; closes connections that send no request in time, and answers bad HTTP with the API's error body."""

    head_seconds = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first request must come within `head_seconds`."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Bytes came; a head that comes in pieces gets no extra time."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        self._stop_watch()

    def send_400_response(self, msg: str) -> None:
        """The client did not send HTTP: answer with the API's error body, if an answer can still be sent."""
        if self.conn.our_state is not h11.IDLE and self.conn.our_state is not h11.SEND_RESPONSE:
            self.transport.close()
            return
        body = json.dumps(invalid(f"{msg} Send HTTP/1.1 with a head of at most {MAX_HEAD_BYTES} bytes.").body).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body),
            h11.EndOfMessage(),
        ):  # fmt: skip
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_watch()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.timeout_keep_alive_handler)

    def _stop_watch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def http_server(app: ASGIApp, *, head_seconds: float = HEAD_SECONDS) -> Server:
    """A server for `app`; give it its sockets."""
    protocol: Any = type("LimitedProtocol", (Protocol,), {"head_seconds": head_seconds})
    config = uvicorn.Config(
        app, http=protocol, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1, backlog=BACKLOG, server_header=False, ws="none",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )  # fmt: skip
    return Server(config)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket. Raises `SettingsError` that names the flag."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OverflowError as error:
        sock.close()
        raise SettingsError(f"{flag} {port}: a port is 0 to 65535") from error
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {port} on {host} is taken: stop what listens there, or choose another with {flag}"
            ) from error
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}; check --host and {flag}") from error
    sock.set_inheritable(False)
    return sock
