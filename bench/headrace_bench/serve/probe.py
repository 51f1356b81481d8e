"""Finds out which parts of the API a server takes: small requests before the run, each using less of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus

import aiohttp

from headrace_bench.errors import BenchError
from headrace_bench.serve.prompts import PATHS, Api, Dialect, text_words
from headrace_client.load.client import Endpoint
from headrace_client.load.sse import Completion, SseDecoder, StreamError

PROBE_SECONDS = 120.0  # a first request may compile something
REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
SHORT_WORDS, LONG_WORDS = 10, 50


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """The dialect that the server took, and notes for the user about it."""

    dialect: Dialect
    notes: tuple[str, ...]


async def probe(
    session: aiohttp.ClientSession, endpoint: Endpoint, wanted: Dialect, *, text: bool = False
) -> ServerDialect:  # fmt: skip
    """Agree with the server on a dialect, `wanted` or less. Raises `BenchError` with the server's own message.

    `text`: measure how many tokens the server makes of our words, even if it takes ids.
    """
    dialect, notes = wanted, list[str]()
    while True:
        try:
            seen = await _ask(session, endpoint, dialect, words=SHORT_WORDS)
            break
        except _RefusedError as refused:
            without = _less(dialect, refused.body)
            if without is None:
                raise BenchError(f"{refused}; nothing else is left to try") from refused
            dialect, note = without
            notes.append(note)
    if seen.tokens is None:
        notes.append("the stream has no usage: a token is counted for each chunk with text")
    if text or not dialect.ids or dialect.api is Api.CHAT:
        dialect, note = await _measure_words(session, endpoint, dialect)
        notes += [note] if note else []
    return ServerDialect(dialect, tuple(notes))


async def _measure_words(
    session: aiohttp.ClientSession, endpoint: Endpoint, dialect: Dialect
) -> tuple[Dialect, str]:  # fmt: skip
    as_text = replace(dialect, ids=False)
    try:
        few = (await _ask(session, endpoint, as_text, words=SHORT_WORDS)).prompt_tokens
        many = (await _ask(session, endpoint, as_text, words=LONG_WORDS)).prompt_tokens
    except _RefusedError:  # the context is too short for that prompt
        few = many = None
    if few is None or many is None or many <= few:
        guess = dialect.tokens_per_word
        return dialect, f"the server does not count prompt tokens: {guess:g} tokens a word are assumed"
    slope = (many - few) / (LONG_WORDS - SHORT_WORDS)
    return replace(dialect, tokens_per_word=slope, overhead=max(0.0, few - slope * SHORT_WORDS)), ""


class _RefusedError(Exception):
    def __init__(self, where: str, status: int, body: str) -> None:
        super().__init__(f"{where}: HTTP {status}: {body}")
        self.body = body


def _less(dialect: Dialect, body: str) -> tuple[Dialect, str] | None:
    """The dialect without what the server's error names, else without the next thing that servers lack."""
    options = list(_options(dialect))
    named = [item for item in options if item[0] in body]
    return (named or options)[0][1:] if options else None


def _options(dialect: Dialect) -> Iterator[tuple[str, Dialect, str]]:
    if dialect.ignore_eos:
        note = "the server refuses ignore_eos: answers end where the model ends them"
        yield "ignore_eos", replace(dialect, ignore_eos=False), note
    if dialect.usage:
        yield "stream_options", replace(dialect, usage=False), "the server refuses stream_options"
    if dialect.ids and dialect.api is Api.COMPLETIONS:
        note = "the server refuses token ids: prompts are text, their lengths approximate"
        yield "prompt", replace(dialect, ids=False), note
    if dialect.limit == "max_tokens":
        note = "the server refuses max_tokens: max_completion_tokens is sent"
        yield "max_tokens", replace(dialect, limit="max_completion_tokens"), note
    if dialect.temperature is not None:
        yield "temperature", replace(dialect, temperature=None), "the server refuses temperature: its default is used"


async def _ask(session: aiohttp.ClientSession, endpoint: Endpoint, dialect: Dialect, *, words: int) -> Completion:
    path = PATHS[dialect.api]
    where = f"POST {endpoint.url}{path}"
    as_ids = dialect.ids and dialect.api is Api.COMPLETIONS
    prompt: object = list(range(40, 40 + words // 2)) if as_ids else " ".join(text_words(words, salt="probe"))
    seen, decoder = Completion(), SseDecoder()
    try:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            session.post(endpoint.url + path, json=dialect.body(endpoint.model, prompt, 4)) as response,
        ):
            if response.status in REFUSED:
                raise _RefusedError(where, response.status, (await response.text(errors="replace"))[:500])
            if response.status != HTTPStatus.OK:
                raise BenchError(f"{where}: HTTP {response.status}: {(await response.text(errors='replace'))[:300]}")
            if "json" in response.content_type:
                raise BenchError(f"{where}: the server answers with JSON instead of a stream; it must stream")
            async for data in response.content.iter_any():
                for payload in decoder.feed(data):
                    seen.feed(payload, asyncio.get_running_loop().time())
    except (aiohttp.ClientError, TimeoutError, OSError, StreamError) as error:
        raise BenchError(f"{where}: the first request failed: {str(error) or type(error).__name__}") from error
    if not seen.times:
        raise BenchError(f"{where}: the stream held no token; is this the right --api for the model?")
    return seen
