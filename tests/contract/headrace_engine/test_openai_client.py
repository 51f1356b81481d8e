"""The official client against the real server, async and sync: answers, streams, and errors as its own."""

import asyncio
from typing import Any

import openai
import pytest

Serve = Any
HELLO: Any = [{"role": "user", "content": "hi"}]


def client_of(server: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


async def test_chats(serve: Serve) -> None:
    server = await serve()
    async with client_of(server) as client:
        whole = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=2, n=2
        )
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len("user: hi\nassistant:")
        assert whole.usage.prompt_tokens_details is not None
        assert len(whole.choices) == 2
        scores = whole.choices[0].logprobs
        assert scores is not None
        assert scores.content is not None
        assert all(len(item.top_logprobs) == 2 for item in scores.content)
        again = [*HELLO, whole.choices[0].message, *HELLO]
        assert (await client.chat.completions.create(model="tiny", messages=again, max_tokens=2)).choices
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=8, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert said == whole.choices[0].message.content
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens // 2
        parts: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        same = await client.chat.completions.create(model="tiny", messages=parts, max_tokens=8, temperature=0)
        assert same.choices[0].message.content == whole.choices[0].message.content


async def test_completions(serve: Serve) -> None:
    server = await serve()
    async with client_of(server) as client:
        whole = await client.completions.create(
            model="tiny", prompt=["one", "two"], n=2, best_of=2, echo=True, logprobs=1, max_tokens=4, seed=1,
            logit_bias={"5": 1}, presence_penalty=0.5, frequency_penalty=0.5, stop=["\x00"], user="me",
            extra_body={"min_p": 0.01, "top_k": 50, "min_tokens": 1, "repetition_penalty": 1.1, "ignore_eos": True},
        )  # fmt: skip
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        assert whole.choices[2].text.startswith("two")
        assert whole.choices[0].logprobs is not None
        assert whole.choices[0].logprobs.tokens is not None
        assert len(whole.choices[0].logprobs.tokens) == 7
        stream = await client.completions.create(model="tiny", prompt="one", max_tokens=4, stream=True, temperature=0)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        same = await client.completions.create(model="tiny", prompt="one", max_tokens=4, temperature=0)
        assert same.choices[0].text == text


async def test_models(serve: Serve) -> None:
    server = await serve()
    async with client_of(server) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "headrace"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.models.retrieve("org/other")
        assert unknown.value.code == "model_not_found"


async def test_errors_are_the_clients_own(serve: Serve) -> None:
    server = await serve(max_num_seqs=1, max_queue_len=1)
    async with client_of(server) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(
                    model="tiny", messages=HELLO, top_logprobs=3, stream=stream  # type: ignore[call-overload]
                )  # fmt: skip
            assert refused.value.param == "top_logprobs"
            assert refused.value.code == "invalid_value"
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.completions.create(model="tiny", prompt="x" * 4000)
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.completions.create(model="other", prompt="x")
        assert unknown.value.param == "model"
        long: Any = {"model": "tiny", "prompt": "x", "max_tokens": 300, "extra_body": {"ignore_eos": True}}
        answers = await asyncio.gather(*(client.completions.create(**long) for _ in range(6)), return_exceptions=True)
        limited = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert limited
        assert int(limited[0].response.headers["retry-after"]) >= 1
        server.state.drain()
        with pytest.raises(openai.InternalServerError) as draining:
            await client.completions.create(model="tiny", prompt="x")
        assert draining.value.status_code == 503
        assert "retry-after" in draining.value.response.headers


async def test_the_synchronous_client(serve: Serve) -> None:
    server = await serve()

    def talk() -> None:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, temperature=0)
            stream = client.chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=5, temperature=0, stream=True
            )
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert said == whole.choices[0].message.content
            text = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=2, echo=True)
            assert text.usage is not None
            assert text.usage.total_tokens == 5
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model="tiny", prompt="")

    await asyncio.to_thread(talk)
