"""OpenAI's API: answers, refusals and their form, and that a refusal affects no other request."""

import asyncio
import json
from typing import Any

import httpx
import pytest

Serve = Any


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_completion_and_its_stream_say_the_same(serve: Serve) -> None:
    server = await serve()
    whole = (await server.complete(max_tokens=12, ignore_eos=True)).json()
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length"
    counts = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert whole["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 0}}
    stream = await server.complete(max_tokens=12, ignore_eos=True, stream=True, stream_options={"include_usage": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(stream.text)
    assert len(chunks) == 12, "one event for each token"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 11 + ["length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert counts.items() <= usage["usage"].items()


async def test_several_prompts_answer_in_order(serve: Serve) -> None:
    server = await serve()
    alone = [(await server.complete(prompt=text)).json()["choices"][0]["text"] for text in ("one", "two", "three")]
    both = (await server.complete(prompt=["one", "two", "three"])).json()
    assert [choice["text"] for choice in both["choices"]] == alone
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2]
    chunks = events((await server.complete(prompt=["one", "two", "three"], stream=True)).text)
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == alone


async def test_token_ids_and_text_are_the_same_prompt(serve: Serve) -> None:
    server = await serve()
    ids = server.engine.model.tokenizer("hello")["input_ids"]
    texts = {(await server.complete(prompt=prompt)).json()["choices"][0]["text"] for prompt in ("hello", ids, [ids])}
    assert len(texts) == 1


async def test_a_seed_gives_the_same_text_in_any_batch(serve: Serve) -> None:
    server = await serve()
    asked = {"temperature": 1, "seed": 7, "max_tokens": 20, "ignore_eos": True}
    alone = (await server.complete(**asked)).json()["choices"][0]["text"]
    crowd = await asyncio.gather(*(server.complete(**asked | {"seed": seed}) for seed in (1, 7, 2, 7, 3)))
    texts = [answer.json()["choices"][0]["text"] for answer in crowd]
    assert texts[1] == texts[3] == alone
    assert len(set(texts)) == 4
    unseeded = [(await server.complete(temperature=1, max_tokens=20)).json()["choices"][0]["text"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


async def test_a_stop_string_ends_the_text_before_it(serve: Serve) -> None:
    server = await serve()
    ids = list(range(60, 70))
    text = (await server.complete(prompt=ids, max_tokens=30, ignore_eos=True)).json()["choices"][0]["text"]
    stop = text[8:10]
    body = (await server.complete(prompt=ids, max_tokens=30, ignore_eos=True, stop=stop)).json()
    assert body["choices"][0]["text"] == text[: text.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    chunks = events((await server.complete(prompt=ids, max_tokens=30, ignore_eos=True, stop=[stop], stream=True)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[: text.index(stop)]
    await server.idle()
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


async def test_unknown_model_and_route(serve: Serve) -> None:
    server = await serve()
    answer = await server.complete(model="gpt-9")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert (await server.http.get("/v1/models/tiny")).json()["max_model_len"] == 2048
    assert (await server.http.get("/v1/models/other")).status_code == 404
    for name in ("%ff", "%ED%A0%80", "a" * 5000, "../v1"):
        answer = await server.http.get(f"/v1/models/{name}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"]
    assert "no such route" in (await server.http.get("/v2")).json()["error"]["message"]
    assert (await server.http.get("/v2")).json()["error"]["code"] == "unknown_route"
    wrong = await server.http.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "wrong_method")
    assert wrong.json()["error"]["message"] == "GET /v1/completions: this route takes POST"
    assert "/openapi.json" in (await server.http.get("/v2")).json()["error"]["message"]


async def test_a_full_queue_is_a_429_with_retry_after(serve: Serve) -> None:
    server = await serve(max_num_seqs=1, max_queue_len=1)
    long = {"max_tokens": 400, "ignore_eos": True}
    answers = await asyncio.gather(*(server.complete(**long) for _ in range(6)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) >= 1
    assert refused[0].json()["error"]["code"] == "queue_full"
    assert server.metric("headrace:rejected_total", reason="queue_full") == len(refused)
    assert (await server.complete()).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(serve: Serve, stream: bool) -> None:
    server = await serve()
    body = {"prompt": ["a", "b"], "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        await server.http.post("/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.1)) if not stream else (
            await _leave(server, body)
        )
    await server.idle()
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total
    assert server.metric("headrace:requests_total", finish_reason="abort") == 2
    assert server.metric("headrace:output_tokens_total") < 4000


async def _leave(server: Any, body: dict[str, Any]) -> None:
    async with server.http.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            break
    raise httpx.ReadTimeout("left")
