"""Clients that leave in every state of their call, without affecting others. Time is counted in steps."""

import asyncio
import contextlib
import json
import threading
from typing import Any

import httpx
import pytest

from headrace_core.scheduler import invariants
from headrace_engine.openai.prompts import Prompts

Serve = Any
FOREVER = {"prompt": "hello", "max_tokens": 1000, "ignore_eos": True, "temperature": 0}


class Client:
    """A call on its own connection, which the client can leave at any moment."""

    def __init__(self, server: Any, **body: Any) -> None:
        self._url = httpx.URL(server.url)
        self._body = json.dumps(FOREVER | body).encode()

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection(self._url.host, self._url.port)
        self.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(self._body)}\r\n\r\n".encode()
            + self._body
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def leave(self) -> None:
        self.writer.close()

    async def events(self, count: int) -> list[Any]:
        """The next events of the stream."""
        found = []
        while len(found) < count:
            line = await self.reader.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        return found


async def until(condition: Any) -> None:
    """The test's time-out is the limit."""
    while not condition():
        await asyncio.sleep(0.002)


async def submitted(server: Any, count: int) -> None:
    """Wait until so many calls have put their requests into the step thread's inbox."""
    await until(lambda: sum(bool(call.generations) for call in server.state.calls._live) == count)


async def gone(server: Any, *, left: int = 0) -> None:
    """Wait until the server has seen that all clients but `left` are gone."""
    await until(lambda: len(server.state.calls) == left)


async def nothing_left(server: Any) -> None:
    """The scheduler's books are right, all blocks are free, no request is tracked, and the next call works."""
    await server.idle()
    loop = server.engine.loop
    await asyncio.to_thread(invariants.check, loop._scheduler)  # the step thread is idle
    assert loop.stats.blocks_free == loop.stats.blocks_total
    assert loop._live == {}
    assert len(server.state.calls) == 0
    assert (await server.complete(max_tokens=2)).status_code == 200


def ids(plan: Any) -> set[str]:
    return {seq.request_id for seq in plan.seqs}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_after_3_tokens_is_gone_by_the_second_step_after(
    serve: Serve, gate: Any, stream: bool
) -> None:
    server = await serve()
    steps = gate(server)
    async with Client(server, stream=stream) as leaver:
        await steps.begun(1)
        (name,) = ids(steps.plans[0])
        async with Client(server, prompt="other", stream=True) as stayer:
            await submitted(server, 2)
            steps.let(3)
            await steps.begun(4)
            if stream:
                assert len(await leaver.events(3)) == 3
            leaver.leave()
            await gone(server, left=1)
            steps.let(1)  # the fourth, which had begun
            await steps.begun(5)
            steps.let(1)
            await steps.begun(6)
            assert [name in ids(plan) for plan in steps.plans] == [True] * 4 + [False] * 2
            held = server.engine.loop.stats
            assert held.running == 1
            assert held.blocks_total - held.blocks_free == len(steps.plans[5].seqs[0].block_table)
            assert len(await stayer.events(3)) == 3
    steps.open()
    await nothing_left(server)
    assert server.metric("headrace:requests_total", finish_reason="abort") == 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunks", [0, 1, 3])
async def test_a_client_that_leaves_during_its_prefill(serve: Serve, gate: Any, stream: bool, chunks: int) -> None:
    server = await serve(max_num_batched_tokens=64, prefill_chunk_size=32)
    steps = gate(server)
    async with Client(server, prompt="x" * 400, stream=stream) as leaver:
        steps.let(chunks)
        await steps.begun(chunks + 1)
        (row,) = steps.plans[-1].seqs
        assert (row.is_prefill, row.samples) == (True, False)
        leaver.leave()
        await gone(server)
    steps.let(1)
    await server.idle()
    assert len(steps.plans) == chunks + 1, "no step after the one that had begun"
    steps.open()
    await nothing_left(server)
    assert server.metric("headrace:output_tokens_total") == 2, "those of the last check"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_queued_client_that_leaves_affects_no_other_request(serve: Serve, gate: Any, stream: bool) -> None:
    server = await serve(max_num_seqs=1)
    alone = (await server.complete(prompt="first", max_tokens=12, ignore_eos=True)).json()["choices"][0]["text"]
    steps = gate(server)
    first = asyncio.create_task(server.complete(prompt="first", max_tokens=12, ignore_eos=True, stream=True))
    await steps.begun(1)
    async with Client(server, prompt="second", stream=stream) as second:
        await submitted(server, 2)
        third = asyncio.create_task(server.complete(prompt="third", max_tokens=3, ignore_eos=True))
        await submitted(server, 3)
        steps.let(3)
        await steps.begun(4)
        assert (server.engine.loop.stats.running, server.engine.loop.stats.waiting) == (1, 2)
        second.leave()
        await gone(server, left=2)
        steps.let(1)
        await steps.begun(5)
        assert (server.engine.loop.stats.running, server.engine.loop.stats.waiting) == (1, 1)
    steps.open()
    chunks = [json.loads(line[6:]) for line in (await first).text.split("\n\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (await third).json()["usage"]["completion_tokens"] == 3
    assert all(len(plan.seqs) == 1 for plan in steps.plans)
    await nothing_left(server)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("body", [{}, {"prompt": ["a", "b"], "n": 2}])
async def test_leaving_races_with_completion_at_every_step(
    serve: Serve, gate: Any, stream: bool, body: dict[str, Any]
) -> None:
    """Four steps at most: a prefill and three tokens. `at` steps are over when the client leaves, one is running."""
    server = await serve()
    steps = gate(server)
    for at in range(4):
        before = len(steps.plans)
        async with Client(server, stream=stream, max_tokens=4, **body) as client:
            steps.let(at)
            await steps.begun(before + at + 1)
            client.leave()
            await gone(server)
        steps.let(4 - at)
        await server.idle()
        assert len(steps.plans) - before == at + 1, "no step after the one that had begun"
        steps.shut()
    # The client leaves when everything is generated and nothing is read yet.
    before = len(steps.plans)
    steps.open()
    async with Client(server, stream=stream, max_tokens=4, **body) as client:
        await steps.begun(before + 1)
        await server.idle()
        client.leave()
        await gone(server)
    steps.open()
    await nothing_left(server)


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_starts_nothing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve()
    reached, go_on = threading.Event(), threading.Event()
    real = Prompts._encode

    def slow(self: Any, text: str, *, special: bool) -> Any:
        reached.set()
        assert go_on.wait(60)
        return real(self, text, special=special)

    monkeypatch.setattr(Prompts, "_encode", slow)
    async with Client(server, stream=True) as client:
        await asyncio.to_thread(reached.wait, 60)
        client.leave()
        await asyncio.sleep(0)
    go_on.set()
    await gone(server)
    await server.idle()
    assert server.metric("headrace:output_tokens_total") < 1000
    await nothing_left(server)


async def test_clients_that_left_in_every_state_leave_room_for_a_full_batch(serve: Serve, gate: Any) -> None:
    server = await serve(max_num_seqs=4)
    steps = gate(server)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(server, stream=at % 2 == 0)) for at in range(12)]
        await steps.begun(1)
        await submitted(server, 12)
        steps.let(2)
        await steps.begun(3)
        for client in clients:
            client.leave()
        await gone(server)
    steps.let(1)
    await server.idle()
    before = len(steps.plans)
    steps.open()
    answers = await asyncio.gather(*(server.complete(max_tokens=20, ignore_eos=True) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert max(len(plan.seqs) for plan in steps.plans[before:]) == 4
    await nothing_left(server)
