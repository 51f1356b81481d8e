"""TCP listeners that forward each connection to one of several backends, without buffering."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Mapping

from headrace_local.service_routes import SocketEndpoint

log = logging.getLogger(__name__)

_CHUNK = 64 * 1024
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 1.0
#: SO_LINGER on, zero seconds: closing sends a reset, which tells the other side that the connection was cut off.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Forwarder:
    """One listener per frontend that has a backend.

    Without a listener the kernel refuses connections at once, as kube-proxy would.
    """

    def __init__(self, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._backends: dict[SocketEndpoint, tuple[SocketEndpoint, ...]] = {}
        self._listeners: dict[SocketEndpoint, asyncio.Server] = {}
        self._turn: dict[SocketEndpoint, int] = {}
        self._failures: dict[SocketEndpoint, str] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._retry: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def update(self, routes: Mapping[SocketEndpoint, tuple[SocketEndpoint, ...]]) -> None:
        """Listen for exactly these routes. Open connections are left alone."""
        async with self._lock:
            self._backends = {frontend: backends for frontend, backends in routes.items() if backends}
            for frontend in [frontend for frontend in self._listeners if frontend not in self._backends]:
                self._listeners.pop(frontend).close()
                self._turn.pop(frontend, None)
                log.info("%s:%d no longer listens", *frontend)
            self._failures = {frontend: why for frontend, why in self._failures.items() if frontend in self._backends}
            await self._listen()

    async def close(self) -> None:
        """Close all listeners and connections."""
        if self._retry is not None:
            self._retry.cancel()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def listening(self) -> frozenset[SocketEndpoint]:
        """The frontends that accept connections now."""
        return frozenset(self._listeners)

    async def _listen(self) -> None:
        for frontend in self._backends:
            if frontend not in self._listeners:
                await self._open(frontend)
        if self._failures and (self._retry is None or self._retry.done()):
            self._retry = asyncio.create_task(self._try_again())

    async def _open(self, frontend: SocketEndpoint) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(frontend, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        try:
            self._listeners[frontend] = await asyncio.start_server(accept, frontend.host, frontend.port, backlog=1024)
        except OSError as error:
            reason = error.strerror or str(error)
            if self._failures.get(frontend) != reason:
                log.error("cannot listen on %s:%d: %s; trying again", frontend.host, frontend.port, reason)
            self._failures[frontend] = reason
            return
        self._failures.pop(frontend, None)
        log.info("%s:%d listens for %d backends", *frontend, len(self._backends[frontend]))

    async def _try_again(self) -> None:
        while self._failures:
            await asyncio.sleep(self._retry_seconds)
            async with self._lock:
                for frontend in list(self._failures):
                    await self._open(frontend)

    async def _serve(
        self, frontend: SocketEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        backend = await self._connect(frontend)
        if backend is None:
            _reset(writer)
            return
        await relay((reader, writer), backend)

    async def _connect(self, frontend: SocketEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the next backend, in turn, that accepts one; None if none does."""
        backends = self._backends.get(frontend, ())
        turn = self._turn.get(frontend, 0)
        self._turn[frontend] = turn + 1
        for step in range(len(backends)):
            backend = backends[(turn + step) % len(backends)]
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(*backend)
            except OSError as error:  # TimeoutError is one
                log.info("%s:%d did not answer for %s:%d: %s", *backend, *frontend, error or "timed out")
        return None


async def relay(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Copy both ways until both ends have finished. If one is reset, the other is reset too."""
    writers = (one[1], other[1])
    copies = [asyncio.create_task(_copy(one[0], other[1])), asyncio.create_task(_copy(other[0], one[1]))]
    try:
        await asyncio.gather(*copies)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers))
    except OSError:
        pass
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for writer in writers:
            _reset(writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, then end the writer's sending side. The other direction continues."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, unless it is closed already."""
    if writer.transport.is_closing():
        return
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
