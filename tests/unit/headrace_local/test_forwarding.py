"""The proxy with real sockets: streaming, half-close, resets, refusals, retries."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace_local.forwarding import Forwarder
from headrace_local.service_routes import SocketEndpoint

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free(host: str = "127.0.0.1") -> SocketEndpoint:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return SocketEndpoint(host, probe.getsockname()[1])


@contextlib.asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[SocketEndpoint]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield SocketEndpoint(*server.sockets[0].getsockname())
    finally:
        server.close()


@contextlib.asynccontextmanager
async def forwarding(*backends: SocketEndpoint) -> AsyncIterator[tuple[Forwarder, SocketEndpoint]]:
    forwarder, frontend = Forwarder(retry_seconds=0.01), free()
    await forwarder.update({frontend: backends})
    try:
        yield forwarder, frontend
    finally:
        await forwarder.close()


def says(text: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)

    return handler


async def ask(frontend: SocketEndpoint) -> bytes:
    reader, writer = await asyncio.open_connection(*frontend)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_half_close_lets_the_answer_through():
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read()  # ends only if the client's end of sending is passed on
        writer.write(b"%d bytes" % len(received))

    async with backend(count) as address, forwarding(address) as (_, frontend):
        reader, writer = await asyncio.open_connection(*frontend)
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert await reader.read() == b"300000 bytes"
        writer.close()


async def test_a_stream_is_passed_on_as_it_comes():
    async def echo_each_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(b"data: " + line)

    async with backend(echo_each_line) as address, forwarding(address) as (_, frontend):
        reader, writer = await asyncio.open_connection(*frontend)
        for number in range(5):  # each answer is needed before the next question: nothing may be held back
            writer.write(b"%d\n" % number)
            assert await reader.readline() == b"data: %d\n" % number
        writer.close()


async def test_the_backends_take_turns():
    async with (
        backend(says(b"a")) as a,
        backend(says(b"b")) as b,
        forwarding(a, b) as (_, frontend),
    ):
        assert [await ask(frontend) for _ in range(4)] == [b"a", b"b", b"a", b"b"]


async def test_a_backend_that_is_gone_is_skipped():
    async with backend(says(b"a")) as a, forwarding(free(), a) as (_, frontend):
        assert [await ask(frontend) for _ in range(2)] == [b"a", b"a"]


async def test_without_backends_connections_are_refused():
    async with backend(says(b"a")) as a, forwarding(a) as (forwarder, frontend):
        assert await ask(frontend) == b"a"
        await forwarder.update({frontend: ()})
        with pytest.raises(ConnectionRefusedError):
            await ask(frontend)
        await forwarder.update({frontend: (a,)})
        assert await ask(frontend) == b"a"
        await forwarder.update({})
        with pytest.raises(ConnectionRefusedError):
            await ask(frontend)


async def test_when_no_backend_answers_the_client_gets_a_reset():
    async with forwarding(free()) as (_, frontend):
        with pytest.raises(ConnectionResetError):
            await ask(frontend)


async def test_a_backend_that_breaks_off_breaks_off_the_client():
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half an ans")
        await reader.readline()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with backend(break_off) as address, forwarding(address) as (_, frontend):
        reader, writer = await asyncio.open_connection(*frontend)
        assert await reader.readexactly(11) == b"half an ans"
        writer.write(b"go on\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_client_that_leaves_is_noticed_by_the_backend():
    left = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        await reader.read()
        left.set()

    async with backend(stream) as address, forwarding(address) as (_, frontend):
        reader, writer = await asyncio.open_connection(*frontend)
        await reader.readexactly(5)
        writer.close()
        async with asyncio.timeout(10):
            await left.wait()


async def test_connections_outlive_a_change_of_routes():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async with backend(echo) as address, forwarding(address) as (forwarder, frontend):
        reader, writer = await asyncio.open_connection(*frontend)
        writer.write(b"1\n")
        assert await reader.readline() == b"1\n"
        await forwarder.update({})
        writer.write(b"2\n")
        assert await reader.readline() == b"2\n"
        writer.close()


async def test_an_address_in_use_is_named_and_tried_again(caplog: pytest.LogCaptureFixture):
    async with backend(says(b"a")) as a:
        with socket.socket() as squatter:
            squatter.bind(("127.0.0.1", 0))
            squatter.listen()
            frontend = SocketEndpoint(*squatter.getsockname())
            forwarder = Forwarder(retry_seconds=0.01)
            await forwarder.update({frontend: (a,)})
            assert f"cannot listen on {frontend.host}:{frontend.port}" in caplog.text
            assert not forwarder.listening
        async with asyncio.timeout(10):
            while frontend not in forwarder.listening:
                await asyncio.sleep(0.01)
        assert await ask(frontend) == b"a"
        await forwarder.close()
