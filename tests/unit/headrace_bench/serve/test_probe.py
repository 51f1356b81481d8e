"""The dialect agreed on with a server."""

import pytest
from aiohttp import web

from headrace_bench.errors import BenchError
from headrace_bench.serve.probe import probe
from headrace_bench.serve.prompts import Api, Dialect
from headrace_client.load.client import find_endpoint, load_session


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


async def test_a_context_too_short_to_measure_in_is_not_an_error(server) -> None:
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
