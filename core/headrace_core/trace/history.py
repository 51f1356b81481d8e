"""What happened to each request, for `explain`: all live ones and the last `KEPT_ENDED` that ended.

A waiting request costs nothing per step. Its record keeps one cause and the time and step at which that began, and is
updated only when the cause changes: when the request is first passed over, when it becomes the head of the queue or
stops being it, and when it starts. What the head waits for is summed once for all requests; each request behind the
head remembers the sums at the time its own wait began.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace_core.scheduler.events import FinishReason
from headrace_core.scheduler.planning import StepBuilder
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.wait_cause import WaitCause
from headrace_core.trace.explain import (
    Eviction,
    PrefillChunk,
    RequestExplanation,
    Wait,
    ended_state,
)

KEPT_ENDED = 1024
KEPT_EVENTS = 128  # chunks, and likewise preemptions, kept of one request

Amount = tuple[int, float]  # steps, seconds
Amounts = dict[WaitCause, Amount]
_AT_THE_HEAD = frozenset(WaitCause) - {
    WaitCause.NEXT_STEP, WaitCause.SIBLING, WaitCause.QUEUE_ORDER, WaitCause.AFTER_PREEMPTION
}  # fmt: skip


@dataclass(slots=True)
class _Record:
    seq: Sequence
    since: float
    since_step: int
    cause: WaitCause | None = WaitCause.NEXT_STEP
    behind: Mapping[WaitCause, Amount] = field(default_factory=dict)  # the head's sums when QUEUE_ORDER began
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    reason: FinishReason | None = None
    cached_tokens: int = 0
    fork_of: str | None = None
    chunks: deque[PrefillChunk] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    num_chunks: int = 0
    preemptions: deque[Eviction] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    num_preemptions: int = 0
    waits: Amounts = field(default_factory=dict)
    stalls: Amounts = field(default_factory=dict)
    held_up: Amounts = field(default_factory=dict)


class History:
    """Records of requests: a `SchedulerObserver`. All times are of one clock and never go back."""

    def __init__(self) -> None:
        self._live: dict[str, _Record] = {}
        self._ended: OrderedDict[str, RequestExplanation] = OrderedDict()
        self._arrived: list[_Record] = []  # since the last plan
        self._blocked: list[_Record] = []  # in the last plan, each with a cause of its own
        self._next_step = 1  # the number of the step planned next
        self._head_sums: Amounts = {}
        self._head_cause: WaitCause | None = None
        self._head_since = 0.0

    def joined(self, seq: Sequence) -> None:
        """A request was queued."""
        record = self._live[seq.request_id] = _Record(seq, seq.request.arrival, self._next_step)
        self._arrived.append(record)

    def planned(self, builder: StepBuilder, now: float) -> None:
        """Note the rows, preemptions and waits of a step planned at `now`."""
        self._head_sums, self._head_cause = self._sums(now), None
        self._receive_arrivals(now)
        self._note_rows(builder, now)
        for preemption in builder.evicted:
            record = self._live[preemption.seq.request_id]
            record.preemptions.append(Eviction(now, preemption.recompute, preemption.because_of))
            record.num_preemptions += 1
            self._turn(record, WaitCause.AFTER_PREEMPTION, now)
        self._note_blocked(builder, now)
        self._head_cause, self._head_since = builder.head_cause, now
        self._next_step += 1

    def first_token(self, seq: Sequence, now: float) -> None:
        """The first token was sampled."""
        self._live[seq.request_id].first_token = now

    def requeued(self, seq: Sequence, now: float) -> None:
        """A fork that was waiting for its sibling joined the queue."""
        record = self._live[seq.request_id]
        if record.cause is WaitCause.SIBLING:
            self._turn(record, WaitCause.QUEUE_ORDER, now)

    def unforked(self, seq: Sequence, *, planned_at: float) -> None:
        """The step in which a fork started failed for its sibling: treat the fork as if it had been passed over."""
        record = self._live[seq.request_id]
        record.started, record.fork_of, record.cached_tokens = None, None, 0
        record.cause, record.since, record.since_step = WaitCause.QUEUE_ORDER, planned_at, self._next_step - 1
        record.behind = self._head_sums

    def ended(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """The request is over."""
        record = self._live.pop(seq.request_id)
        self._turn(record, None, now)
        record.ended, record.reason = now, reason
        self._ended.pop(seq.request_id, None)
        self._ended[seq.request_id] = self._explanation(record, now)  # the record would keep the tokens alive
        if len(self._ended) > KEPT_ENDED:
            self._ended.popitem(last=False)

    def explain(self, request_id: str, now: float) -> RequestExplanation | None:
        """The newest request with that id; None if it is unknown or ended too long ago."""
        if request_id in self._live:
            return self._explanation(self._live[request_id], now)
        ended = self._ended.get(request_id)
        return None if ended is None else replace(ended, at=now)

    def _receive_arrivals(self, now: float) -> None:
        for record in self._arrived:
            if record.ended is None:
                waits_for_sibling = record.seq.phase is SequencePhase.WAITING and record.seq.sibling is not None
                self._turn(record, WaitCause.SIBLING if waits_for_sibling else WaitCause.QUEUE_ORDER, now)
        self._arrived.clear()

    def _note_rows(self, builder: StepBuilder, now: float) -> None:
        for seq, row in zip(builder.seqs, builder.rows, strict=True):
            if not row.is_prefill:
                continue
            record = self._live[seq.request_id]
            self._turn(record, None, now)
            if seq.number in builder.first:
                record.started, record.cached_tokens, record.fork_of = now, builder.first[seq.number], row.fork_of
            if row.token_ids:
                record.chunks.append(PrefillChunk(self._next_step, now, row.start, row.num_tokens))
                record.num_chunks += 1

    def _note_blocked(self, builder: StepBuilder, now: float) -> None:
        before, self._blocked = self._blocked, []
        for seq, cause in builder.blocked:
            record = self._live[seq.request_id]
            if record.cause is not WaitCause.AFTER_PREEMPTION or seq.phase is SequencePhase.PREFILL:
                self._turn(record, cause, now)
                self._blocked.append(record)
        blocked = {record.seq.number for record in self._blocked}
        for record in before:
            if (
                record.seq.number not in blocked
                and record.cause in _AT_THE_HEAD
                and record.seq.phase is SequencePhase.WAITING
            ):
                self._turn(record, WaitCause.QUEUE_ORDER, now)  # another request is now ahead of it

    def _turn(self, record: _Record, cause: WaitCause | None, now: float) -> None:
        """From `now` the request waits for `cause`, or for nothing if None."""
        if cause is record.cause:
            return
        self._settle(record, record.stalls if record.started is not None else record.waits, record.held_up, now)
        record.cause, record.since, record.since_step = cause, now, self._next_step
        if cause is WaitCause.QUEUE_ORDER:
            record.behind = self._sums(now)

    def _settle(self, record: _Record, waits: Amounts, held_up: Amounts, now: float) -> None:
        """Add the wait since the last change to the request's sums."""
        if record.cause is None:
            return
        _add(waits, record.cause, self._next_step - record.since_step, now - record.since)
        if record.cause is WaitCause.QUEUE_ORDER:
            for cause, (steps, seconds) in self._sums(now).items():
                steps_before, seconds_before = record.behind.get(cause, (0, 0.0))
                _add(held_up, cause, steps - steps_before, seconds - seconds_before)

    def _sums(self, now: float) -> Amounts:
        """What the heads of the queue have waited for, up to `now`."""
        sums = dict(self._head_sums)
        if self._head_cause is not None:
            _add(sums, self._head_cause, 1, now - self._head_since)
        return sums

    def _explanation(self, record: _Record, now: float) -> RequestExplanation:
        seq, waits, stalls, held_up = record.seq, dict(record.waits), dict(record.stalls), dict(record.held_up)
        self._settle(record, stalls if record.started is not None else waits, held_up, now)
        return RequestExplanation(
            request_id=seq.request_id,
            state=str(seq.phase) if record.reason is None else ended_state(record.reason),
            at=now,
            arrival=seq.request.arrival,
            started=record.started,
            first_token=record.first_token,
            ended=record.ended,
            prompt_tokens=len(seq.request.prompt_token_ids),
            cached_tokens=record.cached_tokens,
            output_tokens=seq.num_output_tokens,
            max_tokens=seq.request.max_tokens,
            fork_of=record.fork_of,
            chunks=tuple(record.chunks),
            num_chunks=record.num_chunks,
            preemptions=tuple(record.preemptions),
            num_preemptions=record.num_preemptions,
            waits=_listed(waits),
            held_up_by=_listed(held_up),
            stalls=_listed(stalls),
        )


def _add(amounts: Amounts, cause: WaitCause, steps: int, seconds: float) -> None:
    """Add to the sum for `cause`. Zeros add no entry, so causes that a request never waited for stay absent."""
    if steps or seconds:
        steps_before, seconds_before = amounts.get(cause, (0, 0.0))
        amounts[cause] = (steps_before + steps, seconds_before + seconds)


def _listed(amounts: Amounts) -> tuple[Wait, ...]:
    return tuple(Wait(cause, *amounts[cause]) for cause in WaitCause if cause in amounts)
