"""The load client: open loop, arrivals planned ahead, every latency counted from the planned arrival.

A slow server does not slow the client down, and a slow client does not look like a fast server: what was sent late is
late from its planned time on, and the lag is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from itertools import count
from typing import Any

import aiohttp

from headrace_tuner.errors import TunerError
from headrace_tuner.sse import Completion, SseDecoder, StreamError
from headrace_tuner.workload import PlannedRequest, RequestKind, prompt_ids

# Ids that any vocabulary has and no tokenizer uses for control: past the special tokens, within the first hundred.
TOKEN_LOW, TOKEN_HIGH = 32, 96
CONNECT_SECONDS = 10.0


class ErrorKind(StrEnum):
    """Why a request has no full answer. HTTP errors are `http_429` and so on."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    WRONG_LENGTH = "wrong_length"
    UNFINISHED = "unfinished"  # still under way when the client gave up
    CLIENT_FULL = "client_full"  # not sent: too many under way


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it. Seconds: `planned_at`, `sent_at` since the start, others since `planned_at`."""

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

    @property
    def lag(self) -> float:
        """How late it was sent, seconds."""
        return max(0.0, self.sent_at - self.planned_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where completions are asked for; `url` without a path."""

    url: str
    model: str
    max_model_len: int | None = None


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts while a load runs, for whoever shows them."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    first_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class LoadClient:
    """Sends planned requests to one endpoint. `salt` makes prompts unique to a run; `timeout`: seconds per request."""

    endpoint: Endpoint
    session: aiohttp.ClientSession
    salt: str
    timeout: float = 300.0
    max_in_flight: int = 2048
    progress: Progress = field(default_factory=Progress)
    on_end: Callable[[RequestRecord], None] | None = None

    async def open_loop(self, plan: Iterable[PlannedRequest], *, drain: float) -> list[RequestRecord]:
        """Send each request of `plan` at its time, then wait up to `drain` seconds for those under way.

        One record per request, in order of arrival. Cancelling this closes every connection.
        """
        start, numbers = asyncio.get_running_loop().time(), count()
        tasks: list[asyncio.Task[RequestRecord]] = []
        unfinished: set[asyncio.Task[RequestRecord]] = set()
        try:
            for planned in plan:
                await _sleep_until(start + planned.at)
                unfinished = {task for task in unfinished if not task.done()}
                full = len(unfinished) >= self.max_in_flight
                sending = self._refuse(planned, start) if full else self._send(planned, start, next(numbers))
                task = asyncio.create_task(sending)
                tasks.append(task)
                unfinished.add(task)
            await self._drain(tasks, drain)
        finally:
            await _cancel(tasks)
        return [task.result() for task in tasks]

    async def closed_loop(
        self, plan: Iterable[PlannedRequest], *, concurrency: int, duration: float
    ) -> list[RequestRecord]:
        """Keep `concurrency` requests under way for `duration` seconds, in the order of `plan`; its times are ignored.

        Latency counts from the sending, since nothing was planned: such a run says nothing about an arrival rate.
        """
        start, numbers, source = asyncio.get_running_loop().time(), count(), iter(plan)
        records: list[RequestRecord] = []

        async def worker() -> None:
            while (at := asyncio.get_running_loop().time() - start) < duration:
                planned = next(source, None)
                if planned is None:
                    return
                now = PlannedRequest(
                    at=at,
                    prompt_tokens=planned.prompt_tokens,
                    output_tokens=planned.output_tokens,
                    kind=planned.kind,
                )
                records.append(await self._send(now, start, next(numbers)))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
        return sorted(records, key=lambda record: record.planned_at)

    async def _drain(self, tasks: list[asyncio.Task[RequestRecord]], drain: float) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=drain)
        for task in late:
            task.cancel(ErrorKind.UNFINISHED)
        if late:
            await asyncio.wait(late)

    async def _refuse(self, planned: PlannedRequest, start: float) -> RequestRecord:
        now = asyncio.get_running_loop().time()
        return self._record(planned, start, now, Completion(), error=ErrorKind.CLIENT_FULL)

    async def _send(self, planned: PlannedRequest, start: float, number: int) -> RequestRecord:
        loop = asyncio.get_running_loop()
        sent, seen = loop.time(), Completion()
        self.progress.sent += 1
        error: str | None = None
        detail = ""
        try:
            async with asyncio.timeout(self.timeout):
                await self._stream(planned, number, seen)
            if seen.tokens is not None and seen.tokens != planned.output_tokens:
                error, detail = ErrorKind.WRONG_LENGTH, f"{seen.tokens} tokens of {planned.output_tokens}"
        except asyncio.CancelledError as cancelled:
            if ErrorKind.UNFINISHED not in cancelled.args:
                raise
            error = ErrorKind.UNFINISHED
        except _HttpError as refused:
            error, detail = f"http_{refused.status}", refused.body
        except (aiohttp.ClientError, TimeoutError, OSError, StreamError) as failure:
            error, detail = _kind(failure), str(failure) or type(failure).__name__
        record = self._record(planned, start, sent, seen, error=error, detail=detail)
        self.progress.ended += 1
        self.progress.failed += record.error is not None
        if self.on_end:
            self.on_end(record)
        return record

    async def _stream(self, planned: PlannedRequest, number: int, seen: Completion) -> None:
        prompt = prompt_ids(planned.prompt_tokens, salt=f"{self.salt}:{number}", low=TOKEN_LOW, high=TOKEN_HIGH)
        body = _body(self.endpoint.model, prompt, planned.output_tokens)
        loop, decoder = asyncio.get_running_loop(), SseDecoder()
        async with self.session.post(self.endpoint.url + "/v1/completions", json=body) as response:
            if response.status != HTTPStatus.OK:
                raise _HttpError(response.status, (await response.text())[:300])
            async for data in response.content.iter_any():
                for payload in decoder.feed(data):
                    self._feed(seen, payload, loop.time())
                    if seen.done:
                        return
        if not seen.finish_reason:
            raise StreamError("the stream ended without a finish reason")

    def _feed(self, seen: Completion, payload: str, now: float) -> None:
        before = len(seen.times)
        seen.feed(payload, now)
        self.progress.first_tokens += before == 0 and len(seen.times) > 0

    def _record(
        self,
        planned: PlannedRequest,
        start: float,
        sent: float,
        seen: Completion,
        *,
        error: str | None,
        detail: str = "",
    ) -> RequestRecord:
        due = start + planned.at
        finished = error is None and bool(seen.times)
        return RequestRecord(
            planned_at=planned.at,
            sent_at=sent - start,
            kind=planned.kind,
            prompt_tokens=planned.prompt_tokens,
            output_tokens=seen.output_tokens,
            ttft=seen.times[0] - due if seen.times else None,
            gaps=tuple(after - before for before, after in zip(seen.times, seen.times[1:], strict=False)),
            e2e=seen.times[-1] - due if finished else None,
            error=error,
            detail=detail,
        )


class _HttpError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status, self.body = status, body


@asynccontextmanager
async def load_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session for load: as many connections as requests, each new, no time-out but the request's own."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


async def find_endpoint(session: aiohttp.ClientSession, url: str, model: str | None = None) -> Endpoint:
    """Ask `/v1/models` for the model's name and length. Raises `TunerError` that says what is wrong with `url`."""
    url = url.rstrip("/").removesuffix("/v1")
    where = f"GET {url}/v1/models"
    try:
        async with session.get(f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as response:
            if response.status != HTTPStatus.OK:
                raise TunerError(f"{where}: HTTP {response.status}: {(await response.text())[:300]}")
            listed = _models(await response.json(content_type=None))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise TunerError(f"{where}: no OpenAI server answers there: {str(error) or type(error).__name__}") from error
    found = next((item for item in listed if model is None or item["id"] == model), None)
    if found is None:
        names = ", ".join(str(item["id"]) for item in listed) or "none"
        raise TunerError(f"{where}: the server has no model {model or ''}; it lists {names}")
    length = found.get("max_model_len")
    return Endpoint(url=url, model=str(found["id"]), max_model_len=None if length is None else int(length))


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
