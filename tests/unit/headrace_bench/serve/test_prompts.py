"""Prompts of a length, and what a server turns out to understand."""

import json
from dataclasses import replace

import pytest
from aiohttp import web

from headrace_bench.errors import BenchError
from headrace_bench.serve.probe import probe
from headrace_bench.serve.prompts import Api, Composer, Dialect, text_words
from headrace_client.load.client import find_endpoint, load_session
from headrace_core.workload.plans import PlannedRequest, RequestKind

TEXT = Dialect(ids=False, tokens_per_word=2.0, overhead=10.0)


def planned(tokens: int = 30, **more: object) -> PlannedRequest:
    return PlannedRequest(at=0.0, prompt_tokens=tokens, output_tokens=5, kind=RequestKind.SHORT, **more)


def compose(dialect: Dialect, request: PlannedRequest, *, number: int = 0, salt: str = "s") -> dict:
    message = Composer(dialect=dialect, model="m", salt=salt)(request, number)
    assert message.path == ("/v1/chat/completions" if dialect.api is Api.CHAT else "/v1/completions")
    return json.loads(message.body)


def test_ids_have_the_exact_length_and_depend_on_salt_and_number() -> None:
    prompts = [
        compose(Dialect(), planned(), number=number, salt=salt)["prompt"]
        for number, salt in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    ]
    assert all(len(prompt) == 30 for prompt in prompts)
    assert prompts[0] == prompts[1]
    assert len({tuple(prompt) for prompt in prompts}) == 3


def test_text_has_the_words_that_make_the_tokens() -> None:
    body = compose(TEXT, planned())
    assert len(body["prompt"].split()) == 10  # (30 - 10) / 2
    assert body["prompt"][0].isupper()
    assert compose(replace(TEXT, overhead=99.0), planned())["prompt"] == "The"


@pytest.mark.parametrize("dialect", [Dialect(), TEXT])
def test_a_group_shares_its_start_and_no_more(dialect: Dialect) -> None:
    first, second, other = (
        compose(dialect, planned(60, prefix_tokens=20, prefix_group=group), number=number)["prompt"]
        for number, group in ((0, 0), (1, 0), (2, 1))
    )
    split = [item if isinstance(item, list) else item.split() for item in (first, second, other)]
    start = 20 if dialect.ids else 10
    assert split[0][:start] == split[1][:start]
    assert split[0][:start] != split[2][:start]
    assert split[0][start:] != split[1][start:]


def test_a_given_prompt_goes_as_it_is_to_either_api() -> None:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
    assert compose(Dialect(), planned(content="hello there"))["prompt"] == "hello there"
    assert compose(Dialect(), planned(content=messages))["prompt"] == "system: be brief\nuser: hello\nassistant:"
    chat = Dialect(api=Api.CHAT)
    assert compose(chat, planned(content=messages))["messages"] == list(messages)
    assert compose(chat, planned(content="hi"))["messages"] == [{"role": "user", "content": "hi"}]


def test_a_body_holds_only_what_the_dialect_has() -> None:
    full = compose(Dialect(extra={"top_k": 3}), planned())
    assert {name: full[name] for name in ("max_tokens", "ignore_eos", "temperature", "top_k", "stream")} == {
        "max_tokens": 5, "ignore_eos": True, "temperature": 0.0, "top_k": 3, "stream": True,
    }  # fmt: skip
    bare = Dialect(ignore_eos=False, usage=False, temperature=None, limit="max_completion_tokens")
    assert set(compose(bare, planned())) == {"model", "stream", "prompt", "max_completion_tokens"}


def test_words_are_sentences_and_the_same_for_a_salt() -> None:
    words = text_words(25, salt="x")
    assert len(words) == 25
    assert words == text_words(25, salt="x") != text_words(25, salt="y")
    assert [index for index, word in enumerate(words) if word.endswith(".")] == [9, 19]


async def probed(server, wanted: Dialect = Dialect(), **more: object):  # noqa: B008
    async with load_session() as session:
        return await probe(session, await find_endpoint(session, server.url), wanted, **more)


async def test_a_server_that_takes_everything_is_asked_once(server) -> None:
    found = await probed(server)
    assert found.dialect == Dialect()
    assert found.notes == ()
    assert len(server.bodies) == 1


@pytest.mark.parametrize("field", ["ignore_eos", "stream_options", "temperature", "max_tokens"])
async def test_a_field_that_is_refused_is_left_out(server, field: str) -> None:
    server.refuses = (field,)
    found = await probed(server)
    assert field not in server.bodies[-1]
    assert any(field in note for note in found.notes)


async def test_everything_refused_at_once_leaves_the_least(server) -> None:
    server.refuses = ("ignore_eos", "stream_options", "temperature", "max_tokens")
    dialect = (await probed(server)).dialect
    assert (dialect.ignore_eos, dialect.usage, dialect.temperature) == (False, False, None)
    assert dialect.limit == "max_completion_tokens"


async def test_a_server_without_ids_gets_text_of_measured_words(server) -> None:
    async def handler(request, body, number):
        if isinstance(body["prompt"], list):
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=422)
        return await server.well(request, body, number)

    server.handler = handler
    found = await probed(server)
    assert not found.dialect.ids
    assert found.dialect.tokens_per_word == 2.0
    assert found.dialect.overhead == 0.0
    assert "lengths approximate" in found.notes[0]


async def test_a_chats_frame_is_counted_apart(server) -> None:
    dialect = (await probed(server, Dialect(api=Api.CHAT))).dialect
    assert (dialect.tokens_per_word, dialect.overhead) == (2.0, 10.0)


async def test_without_usage_words_are_guessed_and_said_so(server) -> None:
    server.usage = False
    found = await probed(server, Dialect(ids=False))
    assert found.dialect.tokens_per_word == 1.2
    assert any("does not count prompt tokens" in note for note in found.notes)
    assert any("no usage" in note for note in found.notes)


async def test_a_context_too_short_to_measure_in_is_no_error(server) -> None:
    async def handler(request, body, number):
        if len(body["prompt"].split()) > 20:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        return await server.well(request, body, number)

    server.handler = handler
    assert (await probed(server, Dialect(ids=False))).dialect.tokens_per_word == 1.2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 400, "body": {"error": "no"}}, "nothing else is left to try"),
        ({"status": 404, "body": {"error": "no such model"}}, "HTTP 404: .*no such model"),
        ({"status": 200, "body": {"choices": []}}, "JSON instead of a stream"),
    ],
)
async def test_a_server_that_cannot_be_used_says_why(server, answer: dict, words: str) -> None:
    async def handler(_request, _body, _number):
        return web.json_response(answer["body"], status=answer["status"])

    server.handler = handler
    with pytest.raises(BenchError, match=words):
        await probed(server)


async def test_a_stream_without_a_token_is_named(server) -> None:
    async def handler(request, _body, _number):
        response = await server.start(request)
        await server.write(response, "[DONE]")
        return response

    server.handler = handler
    with pytest.raises(BenchError, match="held no token"):
        await probed(server)
