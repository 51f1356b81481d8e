"""The prefill half of a step: chunks of prompts that have begun, then newcomers, in what the decodes leave."""

from __future__ import annotations

from math import ceil

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.admission_budget import AdmissionBudget
from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.policies import Batching
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.step_builder import StepBuilder
from headrace_core.trace.explain import WaitCause


def prefill_limit(config: EngineConfig, num_decodes: int) -> int:
    """Prefill tokens that a step with `num_decodes` decodes may hold."""
    budget = config.max_num_batched_tokens
    if num_decodes == 0:
        return budget
    kept = ceil(budget * config.decode_ratio - 1e-9)  # 100 * 0.07 is a little more than 7
    # Decodes outnumber the budget only after it was lowered below what ran; they all go on.
    return max(0, min(budget - num_decodes, max(1, budget - kept)))


class Prefills:
    """Plans the prefills of one step, behind its decodes."""

    def __init__(self, ledger: SchedulerState, draft: StepBuilder) -> None:
        self._ledger = ledger
        self._config = ledger.config
        self._draft = draft
        self._budget = prefill_limit(self._config, len(draft.rows))
        self._running = [seq for seq in ledger.running.values() if seq.phase is SequencePhase.PREFILL]
        # Members of a static batch that were passed over as long come after those that have begun.
        self._running.sort(key=lambda seq: not seq.begun)
        self._partial = sum(1 for seq in self._running if seq.begun)
        self._long_busy = False  # a long prompt is in prefill
        self._closed = False  # no more prefill in this step
        self._room: AdmissionBudget | None = None

    def plan(self) -> None:
        """Add the step's prefill rows to the draft."""
        self._continue()
        if self._config.batching == Batching.STATIC:
            self._plan_static()
            return
        is_long = self._ledger.waiting.is_long
        self._long_busy = self._long_busy or any(is_long(seq) for seq in self._running if seq.begun)
        self._admit()

    def _continue(self) -> None:
        """Go on with those in prefill. Who cannot stops all behind it, unless it is long and waits for another."""
        stop: WaitCause | None = None
        for seq in self._running:
            size = stop or self._slice_of_running(seq)
            if isinstance(size, int):
                self._add(seq, size)
                continue
            self._draft.blocked.append((seq, size))
            if size is not WaitCause.LONG_PREFILL_LIMIT:
                stop = size
                self._closed = self._closed or not self._config.preemptible

    def _admit(self) -> None:
        """Let newcomers in, in queue order, until one must wait."""
        waiting = self._ledger.waiting
        while (seq := waiting.head(allow_long=not self._long_busy)) is not None:
            cause = self._try_to_admit(seq)
            if cause is not None:
                self._draft.block_head(seq, cause)
                break
        self._draft.block_passed(waiting.passed(seq) if self._long_busy else None)

    def _try_to_admit(self, seq: Sequence) -> WaitCause | None:
        ledger = self._ledger
        if self._draft.evicted:
            return WaitCause.KV_BLOCKS  # memory is short: a newcomer would only be evicted in its turn
        if len(ledger.running) >= self._config.max_num_seqs:
            return WaitCause.SEQUENCE_CAP
        if not self._has_budget():
            return self._no_budget(seq)
        found = ledger.find(seq)
        blocks = ledger.blocks_needed(seq, found)
        obstacle = self._memory().obstacle(seq, blocks)
        if obstacle is not None:
            return obstacle
        remaining = seq.target - len(found) * ledger.pool.block_size
        size = self._slice(seq, remaining, covered=remaining)
        if not isinstance(size, int):
            return size
        ledger.start(seq, found)
        self._memory().take(seq, blocks)
        self._add(seq, size)
        return None

    def _plan_static(self) -> None:
        """Choose who runs until the last of them ends; the budget only spreads their prefill."""
        ledger = self._ledger
        closed = bool(self._running or self._draft.rows)
        while (seq := ledger.waiting.head(allow_long=True)) is not None:
            cause = WaitCause.STATIC_BATCH if closed else self._try_to_join(seq)
            if cause is not None:
                self._draft.block_head(seq, cause)
                break
        if not closed:
            self._continue()

    def _try_to_join(self, seq: Sequence) -> WaitCause | None:
        ledger = self._ledger
        if len(ledger.running) >= self._config.max_num_seqs:
            return WaitCause.SEQUENCE_CAP
        found = ledger.find(seq)
        blocks = ledger.blocks_needed(seq, found)
        obstacle = self._memory().obstacle(seq, blocks)
        if obstacle is None:
            ledger.start(seq, found)
            self._memory().take(seq, blocks)
            self._running.append(seq)
        return obstacle

    def _start_forks(self, sibling: Sequence) -> None:
        """Who waits for this prefill, the last chunk of which is planned, shares it as far as there is room."""
        ledger = self._ledger
        for seq in ledger.waiting.forks_of(sibling):
            full = self._draft.evicted or len(ledger.running) >= self._config.max_num_seqs
            if full or self._memory().obstacle(seq, 0) is not None:
                return
            ledger.fork(seq, sibling)
            self._memory().take(seq, 0)
            self._draft.start(seq, given=seq.target)
            row = ScheduledSeq(
                request_id=seq.request_id,
                start=seq.target,
                token_ids=(),
                block_table=seq.blocks,
                samples=True,
                is_prefill=True,
                fork_of=sibling.request_id,
            )
            self._draft.add(seq, row)

    def _memory(self) -> AdmissionBudget:
        if self._room is None:
            self._room = AdmissionBudget(self._ledger)
        return self._room

    def _has_budget(self) -> bool:
        if self._closed:
            return False
        # A prompt that must go whole may exceed the budget if it is alone.
        return self._budget > 0 or (not self._config.enable_chunked_prefill and not self._any_planned())

    def _no_budget(self, seq: Sequence) -> WaitCause:
        others = self._closed or (seq.begun and self._any_planned())
        return WaitCause.PREFILL_OF_OTHERS if others else WaitCause.TOKEN_BUDGET

    def _any_planned(self) -> bool:
        return bool(self._draft.rows) and self._draft.rows[-1].is_prefill

    def _slice_of_running(self, seq: Sequence) -> int | WaitCause:
        if not self._has_budget():
            return self._no_budget(seq)
        if self._long_busy and self._ledger.waiting.is_long(seq):
            return WaitCause.LONG_PREFILL_LIMIT
        pool = self._ledger.pool
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
        # Whether the step may leave it part prefilled, if it would.
        if seq.begun or size == remaining or self._partial < self._config.max_num_partial_prefills:
            return size
        return WaitCause.PARTIAL_PREFILL_LIMIT

    def _add(self, seq: Sequence, size: int) -> None:
        ledger, draft, end = self._ledger, self._draft, seq.computed + size
        finishes = end == seq.target
        ledger.grow(seq, end)
        draft.start(seq, given=seq.computed)
        row = ScheduledSeq(
            request_id=seq.request_id,
            start=seq.computed,
            token_ids=tuple(seq.tokens[seq.computed : end]),
            block_table=seq.blocks,
            samples=finishes,
            is_prefill=True,
        )
        draft.add(seq, row)
        self._budget -= size
        self._partial += (not finishes) - seq.begun
        seq.begun = True
        self._long_busy = self._long_busy or ledger.waiting.is_long(seq)
        self._closed = not finishes and not self._config.preemptible
        if finishes:
            self._start_forks(seq)
