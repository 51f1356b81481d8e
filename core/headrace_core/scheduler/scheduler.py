"""The scheduler. It is pure, so the engine and the simulator run the same code.

The driver's loop is `plan` -> run the model -> `commit`; between the two, and at any other time, it may `submit`,
`abort`, `finish` and `reconfigure`. It reads no clock and draws no random numbers: the same calls with the same
arguments give the same plans. Decisions are in `decodes`, `prefills`, `admission` and `policies`, data is in `state`,
and the past of each request in `trace.history`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure
from headrace_core.scheduler import admission
from headrace_core.scheduler.decodes import plan_decodes
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
from headrace_core.scheduler.observer import SchedulerObserver, Unobserved
from headrace_core.scheduler.planning import StepBuilder
from headrace_core.scheduler.prefills import Prefills
from headrace_core.scheduler.sequence import Sequence as Seq
from headrace_core.scheduler.sequence import SequencePhase
from headrace_core.scheduler.state import SchedulerState


class SchedulerMisuseError(RuntimeError):
    """The driver broke the order plan -> commit, or committed a plan not in flight: a bug in the driver."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    builder: StepBuilder
    at: float


class Scheduler:
    """Continuous batching with chunked prefill over paged KV blocks.

    `num_blocks` includes block 0, which is only for padding and never handed out. `max_model_len` bounds prompt plus
    output of one request, in tokens. `cache_namespace` stands for all that changes KV and is not part of a request: the
    model, its revision, the number format. `observer` is told what happens to each request.
    """

    def __init__(
        self, config: EngineConfig, *, num_blocks: int, max_model_len: int, cache_namespace: str = "",
        observer: SchedulerObserver | None = None,
    ) -> None:  # fmt: skip
        if max_model_len < 2:
            raise ValueError(f"max_model_len must hold a prompt and an output token, at least 2, got {max_model_len}")
        self.state = SchedulerState(config, num_blocks=num_blocks, namespace=cache_namespace)
        self.max_model_len = max_model_len
        self._observer: SchedulerObserver = observer or Unobserved()
        self._generation = 1
        self._in_flight: _InFlight | None = None
        self._rate = admission.FinishRate()
        self._steps = self._prefill_tokens = self._decode_tokens = self._recomputed_tokens = self._discarded_tokens = 0
        self._cache_queries = self._cache_hits = 0

    @property
    def config(self) -> EngineConfig:
        """The config that the next plan will follow."""
        return self.state.config

    @property
    def generation(self) -> int:
        """Number of the config in force: 1 at first, one more with each change."""
        return self._generation

    @property
    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self.state.live)

    @property
    def in_flight(self) -> StepPlan | None:
        """The plan that waits for its commit."""
        return self._in_flight.plan if self._in_flight else None

    def submit(self, request: Request, now: float) -> Admitted | Rejected:
        """Queue a request, or say why not. Raises `ValueError` for mistakes of the driver."""
        admission.check_call(request, self.state)
        rejected = admission.check(
            request, self.state, max_model_len=self.max_model_len, rate=self._rate, now=now
        )  # fmt: skip
        if rejected is not None:
            return rejected
        self._observer.joined(self.state.enqueue(request))
        return Admitted(request.request_id)

    def abort(self, request_id: str, now: float) -> Finished | None:
        """End a request whose client is gone. None if it is not live: it has ended, or never existed."""
        return self.finish(request_id, FinishReason.ABORT, now)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> Finished | None:
        """End a request for a reason that only the driver sees, such as a stop string. None if it is not live.

        Its blocks are free at once. A plan in flight may still write to them, which is harmless as long as steps run
        one after another: they are handed out again by the next plan at the earliest, and never written while the
        prefix cache knows them.
        """
        seq = self.state.live.get(request_id)
        return None if seq is None else self._end(seq, reason, now)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None without work. Raises `SchedulerMisuseError` while another is in flight."""
        if self._in_flight is not None:
            raise SchedulerMisuseError(
                f"step {self._in_flight.plan.step} is in flight: commit it (with `failed` if it raised) before planning"
            )
        if not self.has_work:
            return None
        builder = StepBuilder()
        plan_decodes(self.state, builder)
        Prefills(self.state, builder).plan()
        if not builder.rows:
            raise RuntimeError(f"no live request can run, which is a bug in the scheduler: {self!r}")
        plan = StepPlan(
            step=self._steps + 1,
            generation=self._generation,
            seqs=tuple(builder.rows),
            preempted=tuple(preemption.seq.request_id for preemption in builder.evicted),
            copies=tuple(builder.copies),
        )
        self._observer.planned(builder, now)
        self._in_flight = _InFlight(plan, builder, now)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Outcome, ...]:
        """Apply the result of a step. Requests that ended since it was planned are ignored.

        Raises `SchedulerMisuseError`, with nothing changed, for a plan that is not in flight or a missing token.
        """
        flight = self._check_result(plan, result)
        self._in_flight = None
        self._steps += 1
        outcomes: list[Outcome] = [
            Preempted(preemption.seq.request_id, preemption.recompute)
            for preemption in flight.builder.evicted
            if preemption.seq.phase is not SequencePhase.ENDED
        ]
        for seq, row in zip(flight.builder.seqs, plan.seqs, strict=True):
            failed = seq.request_id in result.failed
            self._count(seq, row, discarded=failed or seq.phase is SequencePhase.ENDED)
            if seq.phase is SequencePhase.ENDED:
                continue
            if row.fork_of in result.failed and not failed:
                self.state.unfork(seq)
                self._observer.unforked(seq, planned_at=flight.at)
                continue
            if seq.number in flight.builder.first:
                outcomes.append(self._started(seq, flight))
            if failed:
                outcomes.append(self._end(seq, FinishReason.ERROR, now))
                continue
            if row.fork_of is None:
                self.state.advance(seq, row.start + row.num_tokens)
            else:
                self.state.settle_fork(seq)
            if row.samples:
                self._take_token(seq, result.tokens[seq.request_id], now, outcomes)
        return tuple(outcomes)

    def reconfigure(self, changes: Mapping[str, object], now: float) -> Reconfigured | ChangeRefused:
        """Change hot knobs from the next plan on: all of them or none. If no value changes, the generation stays.

        `now` is unused; it is a parameter because recordings hold a time for each call.
        """
        try:
            config = reconfigure(self.config, changes)
        except ConfigError as error:
            return ChangeRefused(error.problems)
        if config != self.config:
            self._generation += 1
            self.state.config = config
            self.state.waiting.reorder(config)
            self._rate.restart()
        return Reconfigured(self._generation, config)

    def expect(self, output_lengths: Sequence[int], now: float) -> None:
        """Let admission learn from these output lengths (tokens), as if requests had just ended with them.

        For a driver that knows them from an earlier run. If they are too short, more is admitted than memory can hold.
        `now` is unused, as in `reconfigure`. Raises `ValueError` for a length below 1.
        """
        if any(length < 1 for length in output_lengths):
            raise ValueError(f"an output has at least 1 token, got lengths {sorted(output_lengths)[:3]} ...")
        for length in output_lengths:
            self.state.predictor.record(length)

    def stats(self) -> SchedulerStats:
        """A snapshot. `blocks_total` leaves out block 0, so a full cache has usage 1."""
        state = self.state
        return SchedulerStats(
            running=len(state.running),
            waiting=len(state.waiting),
            waiting_tokens=state.waiting.tokens,
            blocks_total=state.pool.total,
            blocks_free=state.pool.free,
            generation=self._generation,
            steps=self._steps,
            preemptions=state.preemptions,
            tokens_prefill=self._prefill_tokens,
            tokens_decode=self._decode_tokens,
            tokens_recomputed=self._recomputed_tokens,
            tokens_discarded=self._discarded_tokens,
            cache_queries=self._cache_queries,
            cache_hits=self._cache_hits,
            blocks_cached=state.pool.cached,
        )

    def __repr__(self) -> str:
        state = self.state
        prefills = sum(1 for seq in state.running.values() if seq.phase is SequencePhase.PREFILL)
        flight = f"step {self._in_flight.plan.step}" if self._in_flight else "none"
        return (
            f"<Scheduler generation={self._generation} steps={self._steps} in_flight={flight} "
            f"running={len(state.running)} ({len(state.running) - prefills} decode, {prefills} prefill) "
            f"waiting={len(state.waiting)} ({state.waiting.tokens} tokens) "
            f"blocks={state.pool.used}/{state.pool.total}>"
        )

    def _check_result(self, plan: StepPlan, result: StepResult) -> _InFlight:
        flight = self._in_flight
        if flight is None or (plan is not flight.plan and plan != flight.plan):
            raise SchedulerMisuseError(
                f"step {plan.step} is not in flight ({self!r}): commit each plan once, and only the newest"
            )
        for seq, row in zip(flight.builder.seqs, plan.seqs, strict=True):
            needs_token = row.samples and seq.phase is not SequencePhase.ENDED and row.fork_of not in result.failed
            if needs_token and row.request_id not in result.tokens and row.request_id not in result.failed:
                raise SchedulerMisuseError(
                    f"step {plan.step}: the result has no token for {row.request_id!r}, which samples; "
                    f"name it in `failed` if its forward failed"
                )
        return flight

    def _count(self, seq: Seq, row: ScheduledSeq, *, discarded: bool) -> None:
        """Count a row's tokens as computed, recomputed or discarded. `_end` counts what an abort wastes."""
        size = len(row.token_ids)
        if row.is_prefill:
            self._prefill_tokens += size
        else:
            self._decode_tokens += size
        again = seq.repeated(row.start, row.start + size)
        self._recomputed_tokens += again
        if discarded:
            self._discarded_tokens += size - again

    def _started(self, seq: Seq, flight: _InFlight) -> Started:
        given = flight.builder.first[seq.number]
        if seq.sibling is None and seq.request.reads_cache and self.config.enable_prefix_caching:
            self._cache_queries += len(seq.request.prompt_token_ids)
            self._cache_hits += given
        return Started(seq.request_id, flight.at, given)

    def _take_token(self, seq: Seq, token: int, now: float, outcomes: list[Outcome]) -> None:
        self.state.append(seq, token)
        count = seq.num_output_tokens
        outcomes.append(Token(seq.request_id, token, count - 1))
        if count == 1:
            self._observer.first_token(seq, now)
            self._requeue_fork_of(seq, now)
        if token in seq.request.stop_token_ids:
            outcomes.append(self._end(seq, FinishReason.STOP, now))
        elif count >= seq.request.max_tokens:
            outcomes.append(self._end(seq, FinishReason.LENGTH, now))

    def _requeue_fork_of(self, seq: Seq, now: float) -> None:
        """Queue a fork that can't share its sibling's prefill: no room, too late, or the sibling ended."""
        promoted = self.state.promote_fork(seq)
        if promoted is not None:
            self._observer.requeued(promoted, now)

    def _end(self, seq: Seq, reason: FinishReason, now: float) -> Finished:
        self._rate.record(now)
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._discarded_tokens += seq.fresh
        elif seq.num_output_tokens:
            self.state.predictor.record(seq.num_output_tokens)
        finished = self.state.end(seq, reason)
        self._observer.ended(seq, reason, now)
        self._requeue_fork_of(seq, now)
        return finished
