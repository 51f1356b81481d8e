"""OpenAI's API: what is answered, what is refused and how, and that a refusal harms nobody."""

import asyncio
import json
from typing import Any

import httpx
import openai
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
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    stream = await server.complete(max_tokens=12, ignore_eos=True, stream=True, stream_options={"include_usage": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(stream.text)
    assert len(chunks) == 12, "one event for each token"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 11 + ["length"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]


@pytest.mark.parametrize("count", [1, 2, 16, 17])
async def test_exactly_max_tokens_are_generated(serve: Serve, count: int) -> None:
    server = await serve()
    body = (await server.complete(max_tokens=count, ignore_eos=True)).json()
    assert body["usage"]["completion_tokens"] == count


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


async def test_a_seed_gives_the_same_text_whoever_runs_beside(serve: Serve) -> None:
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


async def test_the_official_client_works(serve: Serve) -> None:
    server = await serve()
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(
            model="tiny", messages=messages, max_completion_tokens=8, temperature=0
        )
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len("user: hi\nassistant:")
        stream = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, temperature=0, stream=True
        )
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=messages, logprobs=True)
        assert refused.value.param == "logprobs"
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="x")


BAD = [
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": ["a", ""]}, "prompt", "empty"),
    ({"prompt": [999_999]}, "prompt", "999999"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": [300]}, "prompt", "0 to 256"),
    ({"prompt": {"a": 1}}, "prompt", "must be a string"),
    ({"prompt": "x" * 5000}, "prompt", "5000 tokens"),
    ({"prompt": "x" * 2048}, "prompt", "2048"),
    ({"max_tokens": 4000}, "max_tokens", "at most 2043"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"temperature": -0.1}, "temperature", "greater"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"stop": 5}, "stop", "string"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"n": 2}, "n", "not supported"),
    ({"best_of": 3}, "best_of", "not supported"),
    ({"logprobs": 0}, "logprobs", "not supported"),
    ({"echo": True}, "echo", "not supported"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
    ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
    ({"wombat": 1}, "wombat", "not a parameter"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_is_a_400_that_names_the_parameter_and_the_next_request_works(
    serve: Serve, stream: bool
) -> None:
    server = await serve()
    for change, param, words in BAD:
        answer = await server.complete(**{"stream": stream} | change)
        assert answer.status_code == 400, (change, answer.text)
        assert answer.headers["content-type"] == "application/json", change
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, change
        assert words in error["message"], (change, error["message"])
    assert (await server.complete()).status_code == 200
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"prompt": "x", "temperature": 1e999}', "finite"),
        (b'{"prompt": "x", "max_tokens": Infinity}', "Infinity"),
        (b'{"prompt": "a\\ud800b"}', "surrogate"),
        (b"[" * 100_000, "not JSON"),
    ],
)
async def test_a_malformed_body_is_a_400(serve: Serve, raw: bytes, words: str) -> None:
    server = await serve()
    answer = await server.http.post("/v1/completions", content=raw)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert (await server.complete()).status_code == 200


async def test_chat_refuses_what_it_cannot_render(serve: Serve) -> None:
    server = await serve()
    for messages, words in (
        ([], "at least 1"),
        ([{"role": "boss", "content": "x"}], "role"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "content"),
        ([{"role": "tool", "content": "x"}], "no tools here"),
        ([{"role": "user", "content": "x" * 3000}], "max_model_len"),
    ):
        answer = await server.http.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400, (messages, answer.text)
        assert words in answer.json()["error"]["message"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    good = await server.http.post("/v1/chat/completions", json={"messages": parts, "max_tokens": 2})
    assert good.status_code == 200


async def test_unknown_model_and_route(serve: Serve) -> None:
    server = await serve()
    answer = await server.complete(model="gpt-9")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert (await server.http.get("/v1/models/tiny")).json()["max_model_len"] == 2048
    assert (await server.http.get("/v1/models/other")).status_code == 404
    assert "no such route" in (await server.http.get("/v2")).json()["error"]["message"]
    assert (await server.http.get("/v1/completions")).status_code == 405


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
