"""The scheduler: pure, so that the engine and the simulator run the same code.

The driver's loop is `plan` -> run the model -> `commit`; between the two, and at any other time, it may `submit`,
`abort`, `finish` and `reconfigure`. It reads no clock and draws no random number: the same calls with the same
arguments give the same plans. Decisions are in `planning`, `admission` and `policies`, state is in `ledger`, and what
became of each request in `history`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure
from headrace_core.scheduler import admission, planning
from headrace_core.scheduler.events import (
    Admitted,
    ChangeRefused,
    Finished,
    FinishReason,
    Outcome,
    Preempted,
    Reconfigured,
    Rejected,
    Request,
    ScheduledSeq,
    SchedulerStats,
    Started,
    StepPlan,
    StepResult,
    Token,
)
from headrace_core.scheduler.sequence import Sequence as Seq
from headrace_core.scheduler.sequence import SequencePhase
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.step_builder import StepBuilder
from headrace_core.trace.explain import RequestExplanation
from headrace_core.trace.history import History


class SchedulerMisuseError(RuntimeError):
    """The driver broke the order plan -> commit, or committed what was not planned. A bug in the driver."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    draft: StepBuilder
    at: float


class Scheduler:
    """Continuous batching with chunked prefill over paged KV blocks.

    `num_blocks` counts block 0, which is only for padding and never handed out. `max_model_len` bounds prompt plus
    output of one request, in tokens. `cache_namespace` names all that changes KV but is no property of a request: the
    model, its revision, the number format.
    """

    def __init__(self, config: EngineConfig, *, num_blocks: int, max_model_len: int, cache_namespace: str = "") -> None:
        if max_model_len < 2:
            raise ValueError(f"max_model_len must hold a prompt and an output token, at least 2, got {max_model_len}")
        self.ledger = SchedulerState(config, num_blocks=num_blocks, namespace=cache_namespace)
        self.max_model_len = max_model_len
        self._history = History()
        self._generation = 1
        self._in_flight: _InFlight | None = None
        self._rate = admission.FinishRate()
        self._steps = self._prefill_tokens = self._decode_tokens = self._recomputed_tokens = self._discarded_tokens = 0
        self._cache_queries = self._cache_hits = 0

    @property
    def config(self) -> EngineConfig:
        """In force for the next plan."""
        return self.ledger.config

    @property
    def generation(self) -> int:
        """Of `config`; 1 at first, one more with each change."""
        return self._generation

    @property
    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self.ledger.live)

    @property
    def in_flight(self) -> StepPlan | None:
        """The plan that waits for its commit."""
        return self._in_flight.plan if self._in_flight else None

    def submit(self, request: Request, now: float) -> Admitted | Rejected:
        """Queue a request, or say why not. Raises `ValueError` for what the driver must have checked."""
        admission.check_call(request, self.ledger)
        rejected = admission.check(
            request, self.ledger, max_model_len=self.max_model_len, rate=self._rate, now=now
        )  # fmt: skip
        if rejected is not None:
            return rejected
        self._history.joined(self.ledger.enqueue(request))
        return Admitted(request.request_id)

    def abort(self, request_id: str, now: float) -> Finished | None:
        """End a request whose client is gone. None if it is not live: it ended already, or never was."""
        return self.finish(request_id, FinishReason.ABORT, now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> Finished | None:
        """End a request for a reason that only the driver sees, such as a stop string. None if it is not live.

        Its blocks are free at once. A plan in flight may still write to them, which is harmless as long as steps run
        one after another: they are handed out again by the next plan at the earliest, and never written while the
        prefix cache knows them.
        """
        seq = self.ledger.live.get(request_id)
        return None if seq is None else self._end(seq, reason, now)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None without work. Raises `SchedulerMisuseError` while another is in flight."""
        if self._in_flight is not None:
            raise SchedulerMisuseError(
                f"step {self._in_flight.plan.step} is in flight: commit it (with `failed` if it raised) before planning"
            )
        if not self.has_work:
            return None
        draft = planning.draft_step(self.ledger)
        if not draft.rows:
            raise RuntimeError(f"nothing can run although requests are live, which must not happen: {self!r}")
        plan = StepPlan(
            step=self._steps + 1,
            generation=self._generation,
            seqs=tuple(draft.rows),
            preempted=tuple(lost.seq.request_id for lost in draft.evicted),
            copies=tuple(draft.copies),
        )
        self._history.planned(draft, now)
        self._in_flight = _InFlight(plan, draft, now)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Outcome, ...]:
        """Take in what a step computed. Requests that ended since it was planned are ignored.

        Raises `SchedulerMisuseError`, with nothing changed, for a plan that is not in flight or a missing token.
        """
        flight = self._check_result(plan, result)
        self._in_flight = None
        self._steps += 1
        outcomes: list[Outcome] = [
            Preempted(lost.seq.request_id, lost.recompute)
            for lost in flight.draft.evicted
            if lost.seq.phase is not SequencePhase.ENDED
        ]
        for seq, row in zip(flight.draft.seqs, plan.seqs, strict=True):
            failed = seq.request_id in result.failed
            self._count(seq, row, lost=failed or seq.phase is SequencePhase.ENDED)
            if seq.phase is SequencePhase.ENDED:
                continue
            if row.fork_of in result.failed and not failed:
                self.ledger.unfork(seq)
                self._history.unforked(seq, planned_at=flight.at)
                continue
            if seq.number in flight.draft.first:
                outcomes.append(self._started(seq, flight))
            if failed:
                outcomes.append(self._end(seq, FinishReason.ERROR, now))
                continue
            if row.fork_of is None:
                self.ledger.advance(seq, row.start + row.num_tokens)
            else:
                self.ledger.settle_fork(seq)
            if row.samples:
                self._take_token(seq, result.tokens[seq.request_id], now, outcomes)
        return tuple(outcomes)

    def reconfigure(self, changes: Mapping[str, object], now: float) -> Reconfigured | ChangeRefused:
        """Change hot knobs from the next plan on; all of them or none. What changes nothing keeps the generation.

        `now` is unused, and there because a recorded log of calls carries one time each.
        """
        try:
            config = reconfigure(self.config, changes)
        except ConfigError as error:
            return ChangeRefused(error.problems)
        if config != self.config:
            self._generation += 1
            self.ledger.config = config
            self.ledger.waiting.reorder(config)
            self._rate.restart()
        return Reconfigured(self._generation, config)

    def expect(self, output_lengths: Sequence[int], now: float) -> None:
        """Count on outputs like these, in tokens, as if requests had just ended with them. Admission learns from them.

        For a driver that knows them from an earlier run. Too short ones let in more than memory holds in the end. `now`
        is unused, as in `reconfigure`. Raises `ValueError` for a length below 1.
        """
        if any(length < 1 for length in output_lengths):
            raise ValueError(f"an output has at least 1 token, got lengths {sorted(output_lengths)[:3]} ...")
        for length in output_lengths:
            self.ledger.predictor.record(length)

    def stats(self) -> SchedulerStats:
        """A snapshot. `blocks_total` leaves out block 0, so that a full cache reads as usage 1."""
        ledger = self.ledger
        return SchedulerStats(
            running=len(ledger.running),
            waiting=len(ledger.waiting),
            waiting_tokens=ledger.waiting.tokens,
            blocks_total=ledger.pool.total,
            blocks_free=ledger.pool.free,
            generation=self._generation,
            steps=self._steps,
            preemptions=ledger.preemptions,
            tokens_prefill=self._prefill_tokens,
            tokens_decode=self._decode_tokens,
            tokens_recomputed=self._recomputed_tokens,
            tokens_discarded=self._discarded_tokens,
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
            blocks_cached=ledger.pool.cached,
        )

    def explain(self, request_id: str, now: float) -> RequestExplanation | None:
        """What a live request, or one of the last that ended, has waited for and done. None if it is unknown."""
        return self._history.explain(request_id, now)

    def __repr__(self) -> str:
        ledger = self.ledger
        prefills = sum(1 for seq in ledger.running.values() if seq.phase is SequencePhase.PREFILL)
        flight = f"step {self._in_flight.plan.step}" if self._in_flight else "none"
        return (
            f"<Scheduler generation={self._generation} steps={self._steps} in_flight={flight} "
            f"running={len(ledger.running)} ({len(ledger.running) - prefills} decode, {prefills} prefill) "
            f"waiting={len(ledger.waiting)} ({ledger.waiting.tokens} tokens) "
            f"blocks={ledger.pool.used}/{ledger.pool.total}>"
        )

    def _check_result(self, plan: StepPlan, result: StepResult) -> _InFlight:
        flight = self._in_flight
        if flight is None or (plan is not flight.plan and plan != flight.plan):
            raise SchedulerMisuseError(
                f"step {plan.step} is not in flight ({self!r}): commit each plan once, and only the newest"
            )
        for seq, row in zip(flight.draft.seqs, plan.seqs, strict=True):
            needs_token = row.samples and seq.phase is not SequencePhase.ENDED and row.fork_of not in result.failed
            if needs_token and row.request_id not in result.tokens and row.request_id not in result.failed:
                raise SchedulerMisuseError(
                    f"step {plan.step}: the result has no token for {row.request_id!r}, which samples; "
                    f"name it in `failed` if its forward failed"
                )
        return flight

    def _count(self, seq: Seq, row: ScheduledSeq, *, lost: bool) -> None:
        """Every computed token is useful, recomputed or discarded; what an end makes useless is counted there."""
        size = len(row.token_ids)
        if row.is_prefill:
            self._prefill_tokens += size
        else:
            self._decode_tokens += size
        again = seq.repeated(row.start, row.start + size)
        self._recomputed_tokens += again
        if lost:
            self._discarded_tokens += size - again

    def _started(self, seq: Seq, flight: _InFlight) -> Started:
        given = flight.draft.first[seq.number]
        if seq.sibling is None and seq.request.reads_cache and self.config.enable_prefix_caching:
            self._cache_queries += len(seq.request.prompt_token_ids)
            self._cache_hits += given
        return Started(seq.request_id, flight.at, given)

    def _take_token(self, seq: Seq, token: int, now: float, outcomes: list[Outcome]) -> None:
        self.ledger.append(seq, token)
        count = seq.num_output_tokens
        outcomes.append(Token(seq.request_id, token, count - 1))
        if count == 1:
            self._history.first_token(seq, now)
            self._requeue_fork_of(seq, now)
        if token in seq.request.stop_token_ids:
            outcomes.append(self._end(seq, FinishReason.STOP, now))
        elif count >= seq.request.max_tokens:
            outcomes.append(self._end(seq, FinishReason.LENGTH, now))

    def _requeue_fork_of(self, seq: Seq, now: float) -> None:
        """There was no room for a fork when it could have started, or it came too late, or its sibling has ended."""
        promoted = self.ledger.promote_fork(seq)
        if promoted is not None:
            self._history.requeued(promoted, now)

    def _end(self, seq: Seq, reason: FinishReason, now: float) -> Finished:
        self._rate.record(now)
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._discarded_tokens += seq.fresh
        elif seq.num_output_tokens:
            self.ledger.predictor.record(seq.num_output_tokens)
        finished = self.ledger.end(seq, reason)
        self._history.ended(seq, reason, now)
        self._requeue_fork_of(seq, now)
        return finished
