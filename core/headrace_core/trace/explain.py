"""What happened to one request, and what it waited for: values, their JSON form, and plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from headrace_core.scheduler.events import FinishReason


class WaitCause(StrEnum):
    """Why a request was not in a step. The first that applies, in the order in which the scheduler asks."""

    NEXT_STEP = "next_step"  # it came while a step ran
    SIBLING = "sibling"  # a fork waits for its sibling's prefill, to share it
    QUEUE_ORDER = "queue_order"  # others were ahead of it
    STATIC_BATCH = "static_batch"  # a static batch runs until its last sequence ends
    SEQUENCE_CAP = "sequence_cap"  # max_num_seqs run
    TOKEN_BUDGET = "token_budget"  # decodes and prefills before it filled the step  # noqa: S105
    KV_BLOCKS = "kv_blocks"  # too few are free
    KV_PEAK = "kv_peak"  # enough are free, but those that run are expected to need them
    PARTIAL_PREFILL_LIMIT = "partial_prefill_limit"  # max_num_partial_prefills are part prefilled
    LONG_PREFILL_LIMIT = "long_prefill_limit"  # another long prompt is in prefill
    PREFILL_OF_OTHERS = "prefill_of_others"  # another's chunks go first, or back to back
    AFTER_PREEMPTION = "after_preemption"  # it lost its blocks and waits to start again


PHRASES: Mapping[WaitCause, str] = {
    WaitCause.NEXT_STEP: "for the step that ran when it came",
    WaitCause.SIBLING: "for the prefill of its sibling, which it shares",
    WaitCause.QUEUE_ORDER: "behind others in the queue",
    WaitCause.STATIC_BATCH: "for the static batch to end",
    WaitCause.SEQUENCE_CAP: "for a place among max_num_seqs",
    WaitCause.TOKEN_BUDGET: "for room in max_num_batched_tokens",
    WaitCause.KV_BLOCKS: "for free KV blocks",
    WaitCause.KV_PEAK: "for KV blocks that running requests are expected to need",
    WaitCause.PARTIAL_PREFILL_LIMIT: "for one of max_num_partial_prefills to end",
    WaitCause.LONG_PREFILL_LIMIT: "for another long prompt, as one is in prefill at a time",
    WaitCause.PREFILL_OF_OTHERS: "for the prefill of others",
    WaitCause.AFTER_PREEMPTION: "to start again after it was preempted",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """How many steps ran without the request, and for how many seconds, because of `cause`."""

    cause: WaitCause
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A slice of the prompt (or of what is computed again) in step `step`, planned at `at`."""

    step: int
    at: float
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """At `at` the request lost `recompute` positions, as `because_of` needed a block; itself if no other did."""

    at: float
    recompute: int
    because_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """One request's life up to `at`. Times are seconds on the driver's clock.

    `waits` add up to the time from arrival to the first chunk; `stalls` came later. `held_up_by` divides the wait
    behind others by what the head of the queue waited for. `chunks` are the newest of `num_chunks`, likewise
    preemptions. `state` is waiting, prefill, decode, or the finish reason.
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
        """As JSON knows it: objects, lists, strings, numbers, null."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def sentences(self) -> tuple[str, ...]:
        """A few plain sentences, in the order of events."""
        return tuple(_sentences(self))


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, StrEnum) else value


def _sentences(told: RequestExplanation) -> Iterator[str]:
    yield _state(told)
    yield from _waited(told)
    yield from _prefilled(told)
    for lost in told.preemptions:
        other = "itself" if lost.because_of == told.request_id else lost.because_of
        yield (
            f"{_seconds(lost.at - told.arrival)} after it came it was preempted to free KV blocks for {other}; "
            f"{_count(lost.recompute, 'token')} lost their KV."
        )
    if told.stalls:
        yield f"After its first chunk it waited {_listed(told.stalls)}."


def _state(told: RequestExplanation) -> str:
    so_far = _count(told.output_tokens, "token")
    if told.ended is not None:
        return (
            f"Request {told.request_id} ended ({told.state}) {_seconds(told.ended - told.arrival)} after it came, "
            f"with {so_far}."
        )
    doing = {
        "waiting": "waits",
        "prefill": "is in prefill",
        "decode": f"has generated {so_far} of at most {told.max_tokens}",
    }[told.state]
    return f"Request {told.request_id} {doing}, {_seconds(told.at - told.arrival)} after it came."


def _waited(told: RequestExplanation) -> Iterator[str]:
    until = told.started if told.started is not None else told.ended if told.ended is not None else told.at
    end = "Its first chunk came" if told.started is not None else "It has not started"
    detail = f": it waited {_listed(told.waits)}" if told.waits else ""
    yield f"{end} after {_seconds(until - told.arrival)}{detail}."
    if told.held_up_by:
        yield f"Those ahead of it waited {_listed(told.held_up_by)}."


def _prefilled(told: RequestExplanation) -> Iterator[str]:
    prompt = _count(told.prompt_tokens, "prompt token")
    if told.started is None:
        return
    if told.fork_of is not None:
        yield f"Its {prompt} were computed with those of {told.fork_of}."
    elif told.cached_tokens:
        yield f"Of its {prompt}, {told.cached_tokens} came from the prefix cache."
    if told.first_token is not None:
        chunks = f" and {_count(told.num_chunks, 'chunk')}" if told.num_chunks else ""
        yield f"Its first token came {_seconds(told.first_token - told.started)}{chunks} later."


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
