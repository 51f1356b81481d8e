"""One HTTP call and the generations it started, as the access log, traces, `/admin/explain` and a drain see them.

A context variable holds the current task's call, so routes need not pass it on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headrace_core.scheduler.events import FinishReason
from headrace_engine.loop.engine_loop import EngineLoop
from headrace_engine.loop.live_request import LiveRequest
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.outputs import Done, EventSink, RequestProblem

KEPT_CALLS = 1024
MAX_REQUEST_ID = 128
CLIENT_CLOSED = 499  # never sent, as the client is gone; for logs and traces
Clock = Callable[[], float]


@dataclass(slots=True, kw_only=True, eq=False)
class HttpCall:
    """One HTTP call. `started` on the monotonic clock, `started_ns` in unix nanoseconds."""

    request_id: str
    method: str
    path: str
    client: str
    started: float
    started_ns: int
    key: str | None = None
    status: int = 0
    config_generation: int | None = None
    revision: str | None = None
    error: str | None = None  # code of the error body
    seconds: float | None = None
    generations: list[GenerationRecord] = field(default_factory=list)
    sink: EventSink | None = None  # receives their events, until the call ends
    body: bytearray | None = None  # kept only where prompts are logged
    span: Any = None

    @property
    def call_id(self) -> str | None:
        """The id in the answer's body: the common prefix of its generations' ids."""
        return self.generations[0].id.rpartition("-")[0] if self.generations else None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt that several generations share counts once."""
        return sum(item.prompt_tokens for item in self.generations if item.fork_of is None)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were in the prefix cache."""
        return sum(item.cached_tokens for item in self.generations if item.fork_of is None)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far, over all generations."""
        return sum(item.output_tokens for item in self.generations)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token of the first generation that has one."""
        return min((item.ttft for item in self.generations if item.ttft is not None), default=None)

    @property
    def finish_reasons(self) -> list[str | None]:
        """One per generation, None while it runs; `abort` for those still running when the client left."""
        left = "abort" if self.status == CLIENT_CLOSED else None
        return [left if item.reason is None else str(item.reason) for item in self.generations]

    def join(self, requests: Sequence[LiveRequest], sink: EventSink) -> None:
        """Record that the call starts these generations."""
        self.generations, self.sink = [each.record for each in requests], sink
        if self.body is not None:
            for item in self.generations:
                item.text = []

    def forget_content(self) -> None:
        """Drop prompts and outputs."""
        self.body = None
        for item in self.generations:
            item.text = None

    def answers_to(self, name: str) -> bool:
        """Whether `name` is the request id, the call id, or the id of one of the generations."""
        return name in (self.request_id, self.call_id) or any(item.id == name for item in self.generations)


_CURRENT: ContextVar[HttpCall | None] = ContextVar("headrace_call", default=None)


def current_call() -> HttpCall | None:
    """The call that this task is answering; None outside a call."""
    return _CURRENT.get()


class CallRegistry:
    """Calls in flight, and the last `kept` ended calls that had generations. Used by the event loop only."""

    def __init__(self, *, keep_content: bool = False, clock: Clock = time.monotonic, kept: int = KEPT_CALLS) -> None:
        self.keep_content = keep_content
        self._clock = clock
        self._kept = kept
        self._live: dict[HttpCall, None] = {}
        self._past: dict[HttpCall, None] = {}

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, *, method: str, path: str, client: str, request_id: str | None) -> HttpCall:
        """A call came in; it is its task's current call until `end`. A sane `request_id` is kept, else one is made."""
        call = HttpCall(
            request_id=request_id if request_id and is_sane_id(request_id) else f"req-{uuid.uuid4().hex}",
            method=method,
            path=path,
            client=client,
            started=self._clock(),
            started_ns=time.time_ns(),
            body=bytearray() if self.keep_content else None,
        )
        self._live[call] = None
        _CURRENT.set(call)
        return call

    def end(self, call: HttpCall) -> None:
        """The call is answered, or its client is gone."""
        call.seconds = self._clock() - call.started
        call.sink = None  # it holds events
        del self._live[call]
        _CURRENT.set(None)
        if call.generations:
            self._past[call] = None
            if len(self._past) > self._kept:
                del self._past[next(iter(self._past))]

    def find(self, name: str) -> list[HttpCall]:
        """Calls with this id that started generations, newest first: clients may reuse theirs."""
        every = (*self._past, *self._live)
        return [call for call in reversed(every) if call.generations and call.answers_to(name)]

    def cut(self, problem: str) -> int:
        """End every generation in flight with an error, so every stream gets a last event; return how many there were.

        Done here and not by the step thread, which may hang.
        """
        now, cut, why = self._clock(), 0, RequestProblem(problem)
        for call in self._live:
            for item in call.generations:
                if call.sink is None or item.reason is not None:
                    continue
                item.end(FinishReason.ERROR, now, why)
                done = Done(text="", reason=FinishReason.ERROR, num_output_tokens=item.output_tokens, problem=why)
                call.sink.put(item.index, done)
                cut += 1
        return cut


def is_sane_id(name: str) -> bool:
    """Whether a client's id can go unchanged into logs and headers: at most 128 printable ASCII characters."""
    return 0 < len(name) <= MAX_REQUEST_ID and name.isascii() and name.isprintable() and name == name.strip()


async def submit(loop: EngineLoop, requests: Sequence[LiveRequest], sink: EventSink) -> None:
    """Queue all requests or none, and record them in this task's call. Raises `RejectedError`."""
    call = current_call()
    if call is None:
        await loop.submit(requests)
        return
    call.join(requests, sink)
    try:
        await loop.submit(requests)
    except Exception:
        call.generations = []
        raise
    if call.config_generation is None:
        call.config_generation, call.revision = loop.state.generation, loop.state.revision
