"""The load client: open loop, arrivals planned ahead, every latency counted from the planned arrival.

A slow server does not slow the client down, and a slow client does not make the server look fast: the latency of a
request that was sent late counts from its planned time, and the lag is reported.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from itertools import count, pairwise
from typing import Any

import aiohttp

from headrace_client.errors import EndpointError
from headrace_client.load.sse import Completion, SseDecoder, StreamError
from headrace_core.workload.plans import PlannedRequest, RequestKind, prompt_ids

# Ids that every vocabulary has and no tokenizer uses for control tokens: past those, but among the first hundred.
TOKEN_LOW, TOKEN_HIGH = 32, 96
CONNECT_SECONDS = 10.0
NO_LIST = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
ROLLING = 256  # latencies kept for a live display


class ErrorKind(StrEnum):
    """Why a request has no full answer. HTTP errors are `http_429` and so on."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    WRONG_LENGTH = "wrong_length"
    UNFINISHED = "unfinished"  # not finished when the client gave up
    CLIENT_FULL = "client_full"  # not sent: too many in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it. Seconds: `planned_at` and `sent_at` since the start, others since `planned_at`.

    `number` is its place in the plan. Token counts are the server's if it sends them (`counted`), else
    `prompt_tokens` is the planned number and `output_tokens` the number of chunks with text; `gaps` are between chunks.
    """

    planned_at: float
    sent_at: float
    kind: RequestKind
    prompt_tokens: int
    output_tokens: int
    ttft: float | None = None
    gaps: tuple[float, ...] = ()
    e2e: float | None = None
    error: str | None = None
    detail: str = ""
    number: int = 0
    wanted_tokens: int = 0
    cached_tokens: int | None = None
    counted: bool = False
    finish_reason: str | None = None
    text: str = ""  # only if the client keeps it

    @property
    def lag(self) -> float:
        """How late it was sent, seconds."""
        return max(0.0, self.sent_at - self.planned_at)

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first. Counts tokens if known, since a chunk may hold several."""
        if not self.gaps or self.error is not None:
            return None
        return math.fsum(self.gaps) / max(1, self.output_tokens - 1 if self.counted else len(self.gaps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server and one of its models; `url` has no path."""

    url: str
    model: str
    max_model_len: int | None = None


@dataclass(slots=True, kw_only=True)
class LoadProgress:
    """Counts while a load runs, and the latest latencies in seconds, for a live display."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    first_tokens: int = 0
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=ROLLING))
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=ROLLING))


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """The HTTP message that is posted for one request."""

    path: str
    body: bytes


Compose = Callable[[PlannedRequest, int], RequestMessage]
"""Makes the message of a planned request, given the request and its number in the plan."""


@dataclass(slots=True, kw_only=True)
class LoadClient:
    """Sends planned requests to one endpoint. `salt` makes prompts unique to a run; `timeout`: seconds per request.

    Without `compose`, a prompt is token ids for `/v1/completions`. With `exact`, an answer of any length but
    the planned one is an error; without, it counts as it is.
    """

    endpoint: Endpoint
    session: aiohttp.ClientSession
    salt: str
    timeout: float = 300.0
    max_in_flight: int = 2048
    progress: LoadProgress = field(default_factory=LoadProgress)
    on_end: Callable[[RequestRecord], None] | None = None
    compose: Compose | None = None
    exact: bool = True
    keep_text: bool = False

    async def open_loop(self, plan: Iterable[PlannedRequest], *, drain: float) -> list[RequestRecord]:
        """Send each request of `plan` at its time, then wait up to `drain` seconds for those in flight.

        One record per request, in order of arrival. Cancelling this closes every connection.
        """
        start = asyncio.get_running_loop().time()
        tasks: list[asyncio.Task[RequestRecord]] = []
        try:
            for number, planned in enumerate(plan):
                await _sleep_until(start + planned.at)
                full = self.progress.sent - self.progress.ended >= self.max_in_flight
                sending = self._refuse(planned, start, number) if full else self._send(planned, start, number)
                tasks.append(asyncio.create_task(sending))
            await self._drain(tasks, drain)
        finally:
            await _cancel(tasks)
        return [task.result() for task in tasks]

    async def closed_loop(
        self, plan: Iterable[PlannedRequest], *, concurrency: int, duration: float, drain: float | None = None
    ) -> list[RequestRecord]:
        """Keep `concurrency` requests in flight for `duration` seconds, in the order of `plan`; its times are ignored.

        Waits for the requests in flight at the end, `drain` seconds at most if given. Latency counts from the sending,
        since no arrival was planned: such a run says nothing about an arrival rate.
        """
        start, numbers, source = asyncio.get_running_loop().time(), count(), iter(plan)
        tasks: list[asyncio.Task[RequestRecord]] = []

        async def worker() -> None:
            while (at := asyncio.get_running_loop().time() - start) < duration:
                planned = next(source, None)
                if planned is None:
                    return
                task = asyncio.create_task(self._send(replace(planned, at=at), start, next(numbers)))
                tasks.append(task)
                await asyncio.wait([task])

        workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
        try:
            await asyncio.wait(workers, timeout=None if drain is None else duration + drain)
            await self._drain(tasks, 0.0)
        finally:
            for each in workers:
                each.cancel()
            await _cancel(tasks)
        return sorted((task.result() for task in tasks), key=lambda record: record.planned_at)

    async def _drain(self, tasks: list[asyncio.Task[RequestRecord]], drain: float) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=drain)
        for task in late:
            task.cancel(ErrorKind.UNFINISHED)
        if late:
            await asyncio.wait(late)

    async def _refuse(self, planned: PlannedRequest, start: float, number: int) -> RequestRecord:
        seen = _SentRequest(planned, number, asyncio.get_running_loop().time() - start)
        return self._ended(seen.record(start, error=ErrorKind.CLIENT_FULL))

    def _ended(self, record: RequestRecord) -> RequestRecord:
        self.progress.failed += record.error is not None
        if self.on_end:
            self.on_end(record)
        return record

    async def _send(self, planned: PlannedRequest, start: float, number: int) -> RequestRecord:
        seen = _SentRequest(planned, number, asyncio.get_running_loop().time() - start)
        seen.completion.keep_text = self.keep_text
        self.progress.sent += 1
        error: str | None = None
        detail = ""
        try:
            async with asyncio.timeout(self.timeout):
                await self._stream(seen, start + planned.at)
            if self.exact and seen.completion.tokens not in (None, planned.output_tokens):
                error = ErrorKind.WRONG_LENGTH
                detail = f"{seen.completion.tokens} tokens of {planned.output_tokens}"
        except asyncio.CancelledError as cancelled:
            if ErrorKind.UNFINISHED not in cancelled.args:
                raise
            error = ErrorKind.UNFINISHED
        except _HttpError as refused:
            error, detail = f"http_{refused.status}", refused.body
        except (aiohttp.ClientError, TimeoutError, OSError, StreamError) as failure:
            error, detail = _kind(failure), str(failure) or type(failure).__name__
        finally:
            self.progress.ended += 1
        return self._ended(seen.record(start, error=error, detail=detail))

    async def _stream(self, request: _SentRequest, due: float) -> None:
        message = (self.compose or self._ids)(request.planned, request.number)
        loop, decoder, seen = asyncio.get_running_loop(), SseDecoder(), request.completion
        url, headers = self.endpoint.url + message.path, {"Content-Type": "application/json"}
        async with self.session.post(url, data=message.body, headers=headers) as response:
            if response.status != HTTPStatus.OK:
                raise _HttpError(response.status, (await response.text(errors="replace"))[:300])
            async for data in response.content.iter_any():
                now = loop.time()
                for payload in decoder.feed(data):
                    self._feed(seen, payload, now, due)
                    if seen.done:
                        return
        if not seen.finish_reason:
            raise StreamError("the stream ended without a finish reason")

    def _feed(self, seen: Completion, payload: str, now: float, due: float) -> None:
        before = len(seen.times)
        seen.feed(payload, now)
        if len(seen.times) == before:
            return
        if before:
            self.progress.gaps.append(now - seen.times[before - 1])
        else:
            self.progress.first_tokens += 1
            self.progress.ttft.append(now - due)

    def _ids(self, planned: PlannedRequest, number: int) -> RequestMessage:
        prompt = prompt_ids(planned.prompt_tokens, salt=f"{self.salt}:{number}", low=TOKEN_LOW, high=TOKEN_HIGH)
        return RequestMessage(
            "/v1/completions", json.dumps(_body(self.endpoint.model, prompt, planned.output_tokens)).encode()
        )


@dataclass(slots=True)
class _SentRequest:
    """A request in flight: what was planned, when it was sent (seconds since the start), what has come so far."""

    planned: PlannedRequest
    number: int
    sent_at: float
    completion: Completion = field(default_factory=Completion)

    def record(self, start: float, *, error: str | None, detail: str = "") -> RequestRecord:
        planned, seen = self.planned, self.completion
        due = start + planned.at
        finished = error is None and bool(seen.times)
        return RequestRecord(
            planned_at=planned.at,
            sent_at=self.sent_at,
            kind=planned.kind,
            prompt_tokens=planned.prompt_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
            output_tokens=seen.output_tokens,
            ttft=seen.times[0] - due if seen.times else None,
            gaps=tuple(after - before for before, after in pairwise(seen.times)),
            e2e=seen.times[-1] - due if finished else None,
            error=error,
            detail=detail,
            number=self.number,
            wanted_tokens=planned.output_tokens,
            cached_tokens=seen.cached_tokens,
            counted=seen.tokens is not None,
            finish_reason=seen.finish_reason,
            text="".join(seen.pieces),
        )


class _HttpError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status, self.body = status, body


@asynccontextmanager
async def load_session(
    headers: Mapping[str, str] | None = None, *, keep_alive: bool = False
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for load: as many connections as requests, and no total time-out (each request has its own).

    Each connection is new, so that a balancer spreads them, unless `keep_alive`. `headers` go with every request.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep_alive)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield session


async def find_endpoint(session: aiohttp.ClientSession, url: str, model: str | None = None) -> Endpoint:
    """Ask `/v1/models` for the model's name and length. Raises `EndpointError`, which says what is wrong.

    A server without that list, such as a proxy, is assumed to have `model`.
    """
    url = url.rstrip("/").removesuffix("/v1")
    where = f"GET {url}/v1/models"
    try:
        async with session.get(f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as response:
            if response.status in NO_LIST and model is not None:
                return Endpoint(url=url, model=model)
            if response.status != HTTPStatus.OK:
                raise EndpointError(
                    f"{where}: HTTP {response.status}: {(await response.text())[:300]}{_hint(response)}"
                )
            listed = _models(await response.json(content_type=None))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise EndpointError(f"{where}: no OpenAI server answers there: {str(error) or type(error).__name__}") from error
    found = next((item for item in listed if model is None or item["id"] == model), None)
    if found is None:
        names = ", ".join(str(item["id"]) for item in listed) or "none"
        raise EndpointError(f"{where}: the server has no model {model or ''}; it lists {names}")
    length = found.get("max_model_len")
    known = isinstance(length, int) and length > 0
    return Endpoint(url=url, model=str(found["id"]), max_model_len=length if known else None)


def _hint(response: aiohttp.ClientResponse) -> str:
    denied = response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    return "; the server wants an API key" if denied else ""


def _models(body: object) -> list[dict[str, Any]]:
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        raise ValueError("the answer has no list of models")
    return [item for item in data if isinstance(item, dict) and "id" in item]


def _body(model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _kind(failure: Exception) -> ErrorKind:
    if isinstance(failure, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return ErrorKind.CONNECT
    if isinstance(failure, TimeoutError):
        return ErrorKind.TIMEOUT
    return ErrorKind.PROTOCOL if isinstance(failure, StreamError) else ErrorKind.RESET


async def _sleep_until(when: float) -> None:
    delay = when - asyncio.get_running_loop().time()
    await asyncio.sleep(max(0.0, delay))


async def _cancel(tasks: list[asyncio.Task[RequestRecord]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.gather(*pending, return_exceptions=True)
