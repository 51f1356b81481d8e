"""The order and framing of a stream's events, in whatever order the engine publishes them."""

import json
from typing import Any

import pytest

from headrace_core.scheduler.events import FinishReason
from headrace_engine.executors import Executors
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.responses import ResponseSpec
from headrace_engine.openai.streaming import Channel, collect, stream
from headrace_engine.outputs import Delta, Done, Event, PromptScored, RequestProblem, TokenScore
from headrace_engine.text.token_text import TokenTexts

EXECUTORS = Executors()
Answer = tuple[ResponseSpec, Channel, Executors]


def answer_of(events: list[tuple[int, Event]], **spec: Any) -> Answer:
    given: dict[str, Any] = {"id": "cmpl-1", "created": 7, "model": "m", "is_chat": False, "prompts": (Prompt((65,)),)}
    channel = Channel()
    for index, event in events:
        channel.put(index, event)
    return ResponseSpec(**given | spec), channel, EXECUTORS


async def events_of(answer: Answer) -> list[dict[str, Any]]:
    raw = b"".join([piece async for piece in stream(*answer)]).decode()
    *lines, done, rest = raw.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def done(text: str = "", reason: FinishReason = FinishReason.STOP, tokens: int = 1, **more: Any) -> Done:
    return Done(text=text, reason=reason, num_output_tokens=tokens, **more)


def score(token: int) -> TokenScore:
    return TokenScore(token_id=token, logprob=-1.0, rank=1)


async def test_samples_wait_for_the_scores_of_their_prompt(tokenizer: Any) -> None:
    told: list[tuple[int, Event]] = [
        (1, Delta(text="b", token_ids=(66,), scores=(score(66),))),
        (2, PromptScored(scores=(None,))),
        (2, done("x", token_ids=(67,), scores=(score(67),))),
        (1, done("c", tokens=2, token_ids=(67,), scores=(score(67),))),
        (0, PromptScored(scores=(None,))),
        (3, done("y", token_ids=(67,), scores=(score(67),))),
        (0, done("a", token_ids=(66,), scores=(score(66),))),
    ]
    prompts = (Prompt((65,), "P"), Prompt((65,), "Q"))
    texts = TokenTexts(tokenizer)
    spec: dict[str, Any] = {"prompts": prompts, "samples": 2, "echo": True, "logprobs": 0, "texts": texts}
    chunks = [chunk["choices"][0] for chunk in await events_of(answer_of(told, **spec))]
    assert [(chunk["index"], chunk["text"]) for chunk in chunks] == [
        (2, "Q"), (2, "x"), (1, "P"), (1, "b"), (1, "c"), (3, "Q"), (3, "y"), (0, "P"), (0, "a"),
    ]  # fmt: skip
    assert all(chunk["logprobs"]["tokens"] for chunk in chunks)


async def test_a_failure_ends_the_stream_with_the_error() -> None:
    told: list[tuple[int, Event]] = [
        (1, Delta(text="b")),
        (0, done(reason=FinishReason.ERROR, problem=RequestProblem("it broke"))),
    ]
    for echo in (False, True):
        events = await events_of(answer_of(told, samples=2, echo=echo, logprobs=0 if echo else None))
        assert events[-1]["error"]["message"] == "it broke"
        assert [event["choices"][0]["text"] for event in events[:-1]] == ([] if echo else ["b"])


async def test_a_bug_while_writing_becomes_an_error_event(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def push(self, text: str) -> list[Any]:
            raise RuntimeError(text)

        finish = push

    told: list[tuple[int, Event]] = [(0, Delta(text="a", token_ids=(1,)))]
    (error,) = await events_of(answer_of(told, is_chat=True, new_parser=Broken))
    assert error["error"]["code"] == "engine_error"
    assert "RuntimeError" in error["error"]["message"]
    assert "a stream broke off" in caplog.text


async def test_usage_counts_what_the_engine_counts() -> None:
    told: list[tuple[int, Event]] = [
        (0, Delta(text="a", token_ids=(1, 2))),
        (1, done("b", tokens=5, cached_tokens=8)),
        (0, Delta(text="", token_ids=(3,))),
        (0, done("c", tokens=4, cached_tokens=16)),
    ]
    *chunks, last = await events_of(answer_of(told, samples=2, usage=True, usage_always=True))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [2, 7, 8, 9]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    whole = json.loads(await collect(*answer_of(told, samples=2)))
    assert whole["usage"] == last["usage"]
    assert [choice["text"] for choice in whole["choices"]] == ["ac", "b"]
