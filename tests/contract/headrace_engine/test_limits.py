"""Limits on the size and the slowness of what a client sends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from headrace_engine.http import limits
from headrace_engine.http.listener import MAX_HEAD_BYTES

Serve = Any
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.2)


class Raw:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bool:
        """Whether the server closes without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@contextlib.asynccontextmanager
async def raw(server: Any) -> AsyncIterator[Raw]:
    url = httpx.URL(server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_body_declared_too_large_is_refused_unread(serve: Serve) -> None:
    server = await serve(http={"max_bytes": 1000})
    async with raw(server) as client:
        await client.send(HEAD + b"Content-Length: 1000000000000\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (413, "close")
        error = json.loads(body)["error"]
        assert error["code"] == "body_too_large"
        assert "1000 bytes" in error["message"]
        assert await client.ended()


async def test_a_chunked_body_is_refused_where_it_becomes_too_large(serve: Serve) -> None:
    server = await serve(http={"max_bytes": 1000})
    async with raw(server) as client:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            await client.send(b"c8\r\n" + b" " * 200 + b"\r\n")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert await client.ended()
    exact = {"prompt": "x" * 900, "max_tokens": 1}
    whole = json.dumps(exact).encode()
    fits = await server.http.post("/v1/completions", content=whole + b" " * (1000 - len(whole)))
    assert fits.status_code == 200
    assert (await server.http.post("/v1/completions", content=whole + b" " * (1001 - len(whole)))).status_code == 413


async def test_an_ordinary_client_sees_the_413(serve: Serve) -> None:
    server = await serve(http={"max_bytes": 1000})
    answer = await server.http.post("/v1/completions", content=b"x" * 5_000_000)
    assert answer.status_code == 413
    assert (await server.complete()).status_code == 200


async def test_half_bodies_hold_up_no_other_call_and_end(serve: Serve) -> None:
    server = await serve(http={"stall_seconds": 3.0})  # long enough for fifty to be there together
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(raw(server)) for _ in range(50)]
        for client in slow:
            await client.send(HEAD + b"Content-Length: 100\r\n\r\n" + b'{"prompt"')
        while len(server.state.calls) < len(slow):
            await asyncio.sleep(0.002)
        assert (await server.complete()).status_code == 200
        for client in slow:
            status, headers, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (408, "body_timeout")
            assert b"after 9 bytes" in body
            assert headers["connection"] == "close"
    await asyncio.wait_for(server.state.drained(), 5)


async def test_a_half_body_does_not_hold_up_a_drain(serve: Serve) -> None:
    server = await serve()
    async with raw(server) as client:
        await client.send(HEAD + b"Content-Length: 100\r\n\r\n{")
        while not len(server.state.calls):
            await asyncio.sleep(0.002)
        server.state.drain()
        await server.state.drained()


async def test_half_heads_end(serve: Serve) -> None:
    server = await serve(http={"head_seconds": 0.2})
    async with raw(server) as silent, raw(server) as half, raw(server) as second:
        await half.send(b"GET /health/live HTTP/1.1\r\nHo")
        await second.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await second.answer())[0] == 200
        await second.send(b"GET")
        assert await silent.ended()
        assert await half.ended()
        assert await second.ended()
    assert (await server.complete()).status_code == 200


async def test_a_head_that_comes_in_pieces_is_served_and_one_that_waits_for_its_answer_is_not_cut(serve: Serve) -> None:
    server = await serve(http={"head_seconds": 0.2})
    async with raw(server) as client:
        body = json.dumps({"prompt": "x", "max_tokens": 600, "ignore_eos": True}).encode()
        for piece in (HEAD[:10], HEAD[10:], f"Content-Length: {len(body)}\r\n\r\n".encode(), body):
            await client.send(piece)
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES + 1), HEAD + b"Content-Length: -1\r\n\r\n",
     HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
     b"GET / HTTP/1.1\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
async def test_bytes_that_are_not_http_get_a_status_below_500_and_harm_no_call(serve: Serve, junk: bytes) -> None:
    server = await serve()
    async with raw(server) as client:
        await client.send(junk)
        status, headers, body = await client.answer()
        assert 400 <= status < 500 or status == 501
        assert headers["content-type"] == "application/json"
        assert "error" in json.loads(body)
    assert (await server.complete()).status_code == 200


async def test_pipelined_calls_are_answered_in_order(serve: Serve) -> None:
    server = await serve()
    async with raw(server) as client:
        bodies = [json.dumps({"prompt": "x", "max_tokens": count, "ignore_eos": True}).encode() for count in (3, 1, 2)]
        await client.send(b"".join(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies))
        counts = [json.loads((await client.answer())[2])["usage"]["completion_tokens"] for _ in bodies]
    assert counts == [3, 1, 2]


async def test_a_refused_small_body_keeps_the_connection(serve: Serve) -> None:
    server = await serve()
    async with raw(server) as client:
        for _ in range(2):
            await client.send(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
            status, headers, _ = await client.answer()
            assert status == 404
            assert "connection" not in headers
