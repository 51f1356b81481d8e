"""From the engine's events to the bytes of an answer: one body, or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace_core.scheduler.events import FinishReason
from headrace_engine.executors import Executors
from headrace_engine.http.errors import ApiError, failed, invalid, unexpected
from headrace_engine.openai.responses import ChoiceWriter, ResponseSpec, whole_body
from headrace_engine.outputs import (
    Delta,
    Done,
    Event,
    PromptScored,
    RequestProblem,
    RequestProblemKind,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
TOOL_WORK = 8  # cost relative to plain text: calls are parsed character by character
SCORE_CHARS = 64  # about how much JSON one scored token takes


class Channel:
    """An `EventSink` that queues the events of all generations of a call, in the order of publication."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def put(self, index: int, event: Event) -> None:
        """Add an event of generation `index`."""
        self._events.put_nowait((index, event))

    async def get(self) -> tuple[int, Event]:
        """The index of a generation and its next event. Waits for one."""
        return await self._events.get()


@dataclass(slots=True)
class _Whole:
    """All events of one generation, joined."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    scored: PromptScored | None = None

    def take(self, event: Event) -> Done | None:
        """Add an event; the last returns a `Done` with everything, earlier ones None."""
        if isinstance(event, PromptScored):
            self.scored = event
            return None
        self.texts.append(event.text)
        self.tokens.extend(event.token_ids)
        self.scores.extend(event.scores)
        if isinstance(event, Delta):
            return None
        return Done(
            text="".join(self.texts), token_ids=tuple(self.tokens), scores=tuple(self.scores), reason=event.reason,
            num_output_tokens=event.num_output_tokens, stop_reason=event.stop_reason, cached_tokens=event.cached_tokens,
        )  # fmt: skip


async def collect(spec: ResponseSpec, channel: Channel, executors: Executors) -> bytes:
    """The body of a call that does not stream. Raises `ApiError` if a generation failed."""
    parts = [_Whole() for _ in range(spec.generations)]
    ends: dict[int, Done] = {}
    while len(ends) < spec.generations:
        index, event = await channel.get()
        raise_failure(event)
        if (done := parts[index].take(event)) is not None:
            ends[index] = done
    ordered = [ends[at] for at in range(spec.generations)]
    # Samples share their prompt's scores.
    scored = [part.scored for part in parts[:: spec.samples]]
    size = sum(len(done.text) for done in ordered) * (1 if spec.new_parser is None else TOOL_WORK)
    size += SCORE_CHARS * _cells(spec, sum(len(part.scores) for part in parts), scored)
    return await executors.unless_small(lambda: to_bytes(whole_body(spec, ordered, scored)), size=size)


def _cells(spec: ResponseSpec, outputs: int, scored: list[PromptScored | None]) -> int:
    """How many scored tokens a body lists."""
    top = 1 + (spec.logprobs or 0), 1 + (spec.prompt_logprobs or spec.logprobs or 0)
    return outputs * top[0] + sum(len(item.scores) for item in scored if item is not None) * spec.samples * top[1]


def raise_failure(event: Event) -> None:
    """Raise `ApiError` for a generation that failed: 400 if the client's constraints left no token to choose."""
    if isinstance(event, Done) and event.reason is FinishReason.ERROR:
        problem = event.problem or RequestProblem("the request failed")
        impossible = problem.kind is RequestProblemKind.IMPOSSIBLE
        raise invalid(str(problem), code="impossible_output") if impossible else failed(str(problem))


def to_bytes(body: object) -> bytes:
    """Strict JSON: NaN and infinities become null."""
    return to_json(body, inf_nan_mode="null")


class _Stream:
    """One answer as server-sent events."""

    def __init__(self, spec: ResponseSpec, channel: Channel, executors: Executors) -> None:
        self._spec = spec
        self._channel = channel
        self._executors = executors
        self._writers = [ChoiceWriter(spec, index) for index in range(spec.generations)]
        self._begun: set[int] = set()
        self._scored: dict[int, PromptScored] = {}
        self._held: dict[int, list[tuple[int, Delta | Done]]] = {}  # by prompt, until its scores are known
        self._needs_scores = spec.scores_prompt
        self._open = spec.generations
        self._tokens: dict[int, int] = {}  # generated so far
        self._cached = 0
        self._head = b"data: " + to_bytes(spec.head(chunk=True))[:-1] + b',"choices":['

    async def events(self) -> AsyncIterator[bytes]:
        """Chunks as they come, then the usage if asked for, then `[DONE]`."""
        try:
            while self._open:
                for index, event in self._in_order(*await self._channel.get()):
                    raise_failure(event)
                    if chunks := await self._chunks(index, event):
                        yield chunks
        except ApiError as error:
            yield _error(error)
        except Exception as error:
            # The headers are already sent: an error event is the only way left to say that the text is incomplete.
            log.exception("a stream broke off")
            yield _error(unexpected(error))
        else:
            if self._spec.usage:
                yield self._chunk(None, usage=self._spec.usage_of(sum(self._tokens.values()), cached=self._cached))
        yield b"data: [DONE]\n\n"

    def _in_order(self, index: int, event: Event) -> list[tuple[int, Delta | Done]]:
        """Events to write now. Those of a prompt's samples wait for the prompt's scores, which come once."""
        prompt = index // self._spec.samples
        if isinstance(event, PromptScored):
            self._scored[prompt] = event
            return self._held.pop(prompt, [])
        failed_early = isinstance(event, Done) and event.reason is FinishReason.ERROR
        if self._needs_scores and prompt not in self._scored and not failed_early:
            self._held.setdefault(prompt, []).append((index, event))
            return []
        return [(index, event)]

    async def _chunks(self, index: int, event: Delta | Done) -> bytes:
        choices: list[dict[str, Any]] = []
        if index not in self._begun:
            self._begun.add(index)
            if (first := await self._first(index)) is not None:
                choices.append(first)
        choices += self._writers[index].more(event)
        if isinstance(event, Done):
            self._open -= 1
            self._cached += event.cached_tokens if index % self._spec.samples == 0 else 0
            self._tokens[index] = event.num_output_tokens
        else:
            self._tokens[index] = self._tokens.get(index, 0) + len(event.token_ids)
        usage = self._spec.usage_of(sum(self._tokens.values())) if self._spec.usage_always else None
        return b"".join(self._chunk(choice, usage=usage) for choice in choices)

    async def _first(self, index: int) -> dict[str, Any] | None:
        scored = self._scored.get(index // self._spec.samples)
        size = 0 if scored is None else SCORE_CHARS * _cells(self._spec, 0, [scored])
        return await self._executors.unless_small(lambda: self._writers[index].first(scored), size=size)

    def _chunk(self, choice: dict[str, Any] | None, *, usage: dict[str, Any] | None) -> bytes:
        parts = [self._head, b"" if choice is None else to_bytes(choice), b"]"]
        if usage is not None or self._spec.usage:
            parts += [b',"usage":', to_bytes(usage)]
        if choice is not None and "role" in choice.get("delta", ()) and self._spec.token_ids:
            parts += [b',"prompt_token_ids":', to_bytes(self._spec.prompts[0].ids)]
        return b"".join([*parts, b"}\n\n"])


def _error(error: ApiError) -> bytes:
    return b"data: " + to_bytes(error.body) + b"\n\n"


def stream(spec: ResponseSpec, channel: Channel, executors: Executors) -> AsyncIterator[bytes]:
    """The server-sent events of a call."""
    return _Stream(spec, channel, executors).events()


class OwningStream(StreamingResponse):
    """Server-sent events that own resources, closed when the stream ends or the client leaves."""

    def __init__(self, content: AsyncIterator[bytes], resources: contextlib.ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, then close the resources."""
        with self._resources:
            await super().__call__(scope, receive, send)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None as soon as the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
