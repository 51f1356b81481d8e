"""The prefill half of a step: in the budget that the decodes leave, prompts that have begun, then newcomers."""

from __future__ import annotations

from math import ceil

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.admission_budget import AdmissionBudget
from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.planning import StepBuilder
from headrace_core.scheduler.policies import Batching
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.wait_cause import WaitCause


def prefill_limit(config: EngineConfig, num_decodes: int) -> int:
    """Prefill tokens that a step with `num_decodes` decodes may hold."""
    budget = config.max_num_batched_tokens
    if num_decodes == 0:
        return budget
    kept = ceil(budget * config.decode_ratio - 1e-9)  # 100 * 0.07 is a little more than 7
    # Decodes outnumber the budget only after it was lowered below their number; they all continue.
    return max(0, min(budget - num_decodes, max(1, budget - kept)))


class Prefills:
    """Plans the prefills of one step. Made after the step's decodes are planned."""

    def __init__(self, state: SchedulerState, builder: StepBuilder) -> None:
        self._state = state
        self._config = state.config
        self._builder = builder
        self._budget = prefill_limit(self._config, len(builder.rows))
        self._running = [seq for seq in state.running.values() if seq.phase is SequencePhase.PREFILL]
        # Long members of a static batch that were passed over come after those that have begun.
        self._running.sort(key=lambda seq: not seq.begun)
        self._partial = sum(1 for seq in self._running if seq.begun)
        self._long_busy = False  # a long prompt is in prefill
        self._closed = False  # no more prefill in this step
        self._memory_budget: AdmissionBudget | None = None

    def plan(self) -> None:
        """Add the step's prefill rows."""
        self._continue()
        if self._config.batching == Batching.STATIC:
            self._plan_static()
            return
        is_long = self._state.waiting.is_long
        self._long_busy = self._long_busy or any(is_long(seq) for seq in self._running if seq.begun)
        self._admit()

    def _continue(self) -> None:
        """Continue the running prefills in order.

        One that cannot continue stops all behind it, unless it is a long prompt that waits for another long one.
        """
        stop: WaitCause | None = None
        for seq in self._running:
            size = stop or self._slice_of_running(seq)
            if isinstance(size, int):
                self._add(seq, size)
                continue
            self._builder.blocked.append((seq, size))
            if size is not WaitCause.LONG_PREFILL_LIMIT:
                stop = size
                self._closed = self._closed or not self._config.preemptible

    def _admit(self) -> None:
        """Admit requests in queue order until one must wait."""
        waiting = self._state.waiting
        while (seq := waiting.head(allow_long=not self._long_busy)) is not None:
            cause = self._try_to_admit(seq)
            if cause is not None:
                self._builder.block_head(seq, cause)
                break
        self._builder.block_passed(waiting.passed(seq) if self._long_busy else None)

    def _try_to_admit(self, seq: Sequence) -> WaitCause | None:
        state = self._state
        if self._builder.evicted:
            return WaitCause.KV_BLOCKS  # memory is short: a newcomer would soon be evicted itself
        if len(state.running) >= self._config.max_num_seqs:
            return WaitCause.SEQUENCE_CAP
        if not self._has_budget():
            return self._no_budget(seq)
        found = state.find(seq)
        blocks = state.blocks_needed(seq, found)
        obstacle = self._memory().obstacle(seq, blocks)
        if obstacle is not None:
            return obstacle
        remaining = seq.target - len(found) * state.pool.block_size
        size = self._slice(seq, remaining, covered=remaining)
        if not isinstance(size, int):
            return size
        state.start(seq, found)
        self._memory().take(seq, blocks)
        self._add(seq, size)
        return None

    def _plan_static(self) -> None:
        """Choose the members of a static batch if none is running. The budget only spreads their prefill over steps."""
        state = self._state
        closed = bool(self._running or self._builder.rows)
        while (seq := state.waiting.head(allow_long=True)) is not None:
            cause = WaitCause.STATIC_BATCH if closed else self._try_to_join(seq)
            if cause is not None:
                self._builder.block_head(seq, cause)
                break
        if not closed:
            self._continue()

    def _try_to_join(self, seq: Sequence) -> WaitCause | None:
        state = self._state
        if len(state.running) >= self._config.max_num_seqs:
            return WaitCause.SEQUENCE_CAP
        found = state.find(seq)
        blocks = state.blocks_needed(seq, found)
        obstacle = self._memory().obstacle(seq, blocks)
        if obstacle is None:
            state.start(seq, found)
            self._memory().take(seq, blocks)
            self._running.append(seq)
        return obstacle

    def _start_forks(self, sibling: Sequence) -> None:
        """Start the forks that wait for `sibling`, whose last chunk has just been planned, as long as there is room."""
        state = self._state
        for seq in state.waiting.forks_of(sibling):
            full = self._builder.evicted or len(state.running) >= self._config.max_num_seqs
            if full or self._memory().obstacle(seq, 0) is not None:
                return
            state.fork(seq, sibling)
            self._memory().take(seq, 0)
            self._builder.start(seq, given=seq.target)
            row = ScheduledSeq(
                request_id=seq.request_id,
                start=seq.target,
                token_ids=(),
                block_table=seq.blocks,
                samples=True,
                is_prefill=True,
                fork_of=sibling.request_id,
            )
            self._builder.add(seq, row)

    def _memory(self) -> AdmissionBudget:
        if self._memory_budget is None:
            self._memory_budget = AdmissionBudget(self._state)
        return self._memory_budget

    def _has_budget(self) -> bool:
        if self._closed:
            return False
        # A prompt that must run whole may exceed the budget if it is the only prefill.
        return self._budget > 0 or (not self._config.enable_chunked_prefill and not self._any_planned())

    def _no_budget(self, seq: Sequence) -> WaitCause:
        others = self._closed or (seq.begun and self._any_planned())
        return WaitCause.PREFILL_OF_OTHERS if others else WaitCause.TOKEN_BUDGET

    def _any_planned(self) -> bool:
        return bool(self._builder.rows) and self._builder.rows[-1].is_prefill

    def _slice_of_running(self, seq: Sequence) -> int | WaitCause:
        if not self._has_budget():
            return self._no_budget(seq)
        if self._long_busy and self._state.waiting.is_long(seq):
            return WaitCause.LONG_PREFILL_LIMIT
        pool = self._state.pool
        covered = (len(seq.blocks) + pool.free) * pool.block_size - seq.computed
        return self._slice(seq, seq.remaining_prefill, covered=covered)

    def _slice(self, seq: Sequence, remaining: int, *, covered: int) -> int | WaitCause:
        """How many of `remaining` positions this step may compute, with blocks for `covered`; or why none."""
        size = remaining
        if self._config.enable_chunked_prefill:
            size = min(remaining, self._config.chunk, self._budget, covered)
        elif remaining > self._budget and self._any_planned():
            return self._no_budget(seq)
        if size == 0 or size > covered:
            return WaitCause.KV_BLOCKS
        # A newcomer that this step would leave partly prefilled needs a place among the partial prefills.
        if seq.begun or size == remaining or self._partial < self._config.max_num_partial_prefills:
            return size
        return WaitCause.PARTIAL_PREFILL_LIMIT

    def _add(self, seq: Sequence, size: int) -> None:
        state, builder, end = self._state, self._builder, seq.computed + size
        finishes = end == seq.target
        state.grow(seq, end)
        builder.start(seq, given=seq.computed)
        row = ScheduledSeq(
            request_id=seq.request_id,
            start=seq.computed,
            token_ids=tuple(seq.tokens[seq.computed : end]),
            block_table=seq.blocks,
            samples=finishes,
            is_prefill=True,
        )
        builder.add(seq, row)
        self._budget -= size
        self._partial += (not finishes) - seq.begun
        seq.begun = True
        self._long_busy = self._long_busy or state.waiting.is_long(seq)
        self._closed = not finishes and not self._config.preemptible
        if finishes:
            self._start_forks(seq)
