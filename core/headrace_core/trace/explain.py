"""What happened to one request and what it waited for: as values, as JSON and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from headrace_core.scheduler.events import FinishReason
from headrace_core.scheduler.wait_cause import WaitCause

PHRASES: Mapping[WaitCause, str] = {
    WaitCause.NEXT_STEP: "for the step that was running when it arrived",
    WaitCause.SIBLING: "for its sibling's prefill, to share it",
    WaitCause.QUEUE_ORDER: "behind other requests in the queue",
    WaitCause.STATIC_BATCH: "for the static batch to end",
    WaitCause.SEQUENCE_CAP: "for a place among max_num_seqs",
    WaitCause.TOKEN_BUDGET: "for room in max_num_batched_tokens",
    WaitCause.KV_BLOCKS: "for free KV blocks",
    WaitCause.KV_PEAK: "for KV blocks that running requests are expected to need",
    WaitCause.PARTIAL_PREFILL_LIMIT: "for one of the max_num_partial_prefills to end",
    WaitCause.LONG_PREFILL_LIMIT: "for another long prompt, since only one may be in prefill at a time",
    WaitCause.PREFILL_OF_OTHERS: "for other prefills",
    WaitCause.AFTER_PREEMPTION: "to start again after it was preempted",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """Steps that ran without the request because of `cause`, and the seconds that they took."""

    cause: WaitCause
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A slice of the prompt (or of tokens being recomputed) in step `step`, planned at `at`."""

    step: int
    at: float
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """At `at` the request lost `recompute` positions to free a block for request `because_of`, possibly itself."""

    at: float
    recompute: int
    because_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """One request's life up to `at`. Times are seconds on the driver's clock.

    `waits` add up to the time from arrival to the first chunk; `stalls` came later. `held_up_by` splits the wait
    behind others by what the head of the queue was waiting for. `chunks` holds the newest of `num_chunks`, and
    `preemptions` likewise. `state` is waiting, prefill, decode, or the finish reason.
    """

    request_id: str
    state: str
    at: float
    arrival: float
    started: float | None
    first_token: float | None
    ended: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    fork_of: str | None
    chunks: tuple[PrefillChunk, ...]
    num_chunks: int
    preemptions: tuple[Eviction, ...]
    num_preemptions: int
    waits: tuple[Wait, ...]
    held_up_by: tuple[Wait, ...]
    stalls: tuple[Wait, ...]

    def to_dict(self) -> dict[str, object]:
        """Only JSON types: objects, lists, strings, numbers, null."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def sentences(self) -> tuple[str, ...]:
        """A few sentences in the order of events, for people."""
        return tuple(_sentences(self))


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, StrEnum) else value


def _sentences(request: RequestExplanation) -> Iterator[str]:
    yield _state(request)
    yield from _waited(request)
    yield from _prefilled(request)
    for eviction in request.preemptions:
        other = "itself" if eviction.because_of == request.request_id else eviction.because_of
        yield (
            f"{_seconds(eviction.at - request.arrival)} after it arrived it was preempted to free KV blocks for "
            f"{other}; the KV of {_count(eviction.recompute, 'token')} was lost."
        )
    if request.stalls:
        yield f"After its first chunk it waited {_listed(request.stalls)}."


def _state(request: RequestExplanation) -> str:
    so_far = _count(request.output_tokens, "token")
    if request.ended is not None:
        return (
            f"Request {request.request_id} ended ({request.state}) {_seconds(request.ended - request.arrival)} "
            f"after it arrived, with {so_far}."
        )
    doing = {
        "waiting": "waits",
        "prefill": "is in prefill",
        "decode": f"has generated {so_far} of at most {request.max_tokens}",
    }[request.state]
    return f"Request {request.request_id} {doing}, {_seconds(request.at - request.arrival)} after it arrived."


def _waited(request: RequestExplanation) -> Iterator[str]:
    until = next(at for at in (request.started, request.ended, request.at) if at is not None)
    end = "Its first chunk came" if request.started is not None else "It has not started"
    detail = f": it waited {_listed(request.waits)}" if request.waits else ""
    yield f"{end} after {_seconds(until - request.arrival)}{detail}."
    if request.held_up_by:
        yield f"Those ahead of it waited {_listed(request.held_up_by)}."


def _prefilled(request: RequestExplanation) -> Iterator[str]:
    prompt = _count(request.prompt_tokens, "prompt token")
    if request.started is None:
        return
    if request.fork_of is not None:
        yield f"Its {prompt} were computed with those of {request.fork_of}."
    elif request.cached_tokens:
        yield f"Of its {prompt}, {request.cached_tokens} came from the prefix cache."
    if request.first_token is not None:
        chunks = f" and {_count(request.num_chunks, 'chunk')}" if request.num_chunks else ""
        yield f"Its first token came {_seconds(request.first_token - request.started)}{chunks} later."


def _listed(waits: tuple[Wait, ...]) -> str:
    ordered = sorted(waits, key=lambda wait: -wait.seconds)
    return ", ".join(f"{_seconds(wait.seconds)} {PHRASES[wait.cause]}" for wait in ordered)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.2f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ended_state(reason: FinishReason) -> str:
    """`RequestExplanation.state` of a request that ended for `reason`."""
    return str(reason)
