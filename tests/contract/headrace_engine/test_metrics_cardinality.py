"""Whatever clients send, the number of series stays the same."""

import asyncio
import random
from typing import Any

import pytest

Serve = Any
STRANGE = ['a"b', "back\\slash", "new\nline", "x" * 2000, "é", "\u2028", "", "{}", 'le="0.1"']
COUNT, AT_ONCE = 1000, 25


def series(server: Any) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in server.engine.metrics.registry.collect()
        for sample in family.samples
    }


def body(rng: random.Random) -> dict[str, Any]:
    """A body, valid or not, with everything that a client can choose."""
    strange = rng.choice(STRANGE)
    extra: dict[str, Any] = rng.choice([
        {"model": strange}, {"user": strange}, {"stop": [strange or "q"]}, {"seed": rng.randrange(2**31)},
        {"priority": rng.randrange(-9, 9)}, {"max_tokens": rng.choice([0, 1, 3, 10**9])}, {strange: strange},
        {"prompt": strange}, {"prompt": [rng.randrange(256) for _ in range(rng.randrange(1, 30))]},
        {"temperature": rng.choice([-1, 0, 1, 2])}, {"n": rng.choice([1, 2])}, {"prompt": []},
    ])  # fmt: skip
    return {"prompt": "hello", "max_tokens": 1} | extra


@pytest.mark.timeout(300)
async def test_a_thousand_strange_requests_make_no_series(serve: Serve) -> None:
    server = await serve(max_queue_len=4, max_num_seqs=2, max_num_batched_tokens=64)
    before, rng = series(server), random.Random(3)
    statuses: list[int] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def send() -> None:
        async with gate:
            chat = rng.random() < 0.2
            content = {"messages": [{"role": rng.choice(["user", "tool", "x"]), "content": rng.choice(STRANGE)}]}
            path, sent = (
                ("/v1/chat/completions", content | {"max_tokens": 1}) if chat else ("/v1/completions", body(rng))
            )
            headers = {"x-request-id": rng.choice(["a b", "x" * 300, "r"]), "user-agent": f"agent {rng.random()}"}
            try:
                answer = await server.http.post(path, json=sent, headers=headers, timeout=rng.choice([None, 0.01]))
                statuses.append(answer.status_code)
            except Exception:  # the client left
                statuses.append(499)

    await asyncio.gather(*(send() for _ in range(COUNT)))
    await server.idle()
    assert len(statuses) == COUNT
    assert {200, 400, 404, 429, 499} <= set(statuses), "strange enough"
    assert series(server) == before
    assert server.engine.metrics._live == {}, "nothing is kept of requests that ended"
