"""How much memory one step may promise to newcomers.

A newcomer is admitted only if its whole target, and one more block for each running sequence, fits in what is free
beyond what running prefills are still owed (rule 1 of `planning`), and if the expected peak of all running
sequences and the newcomer fits in the pool. The second is a forecast: when it is wrong, that costs an eviction. The
first is exact.
"""

from __future__ import annotations

from headrace_core.scheduler.forecast import peak_blocks
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.wait_cause import WaitCause


class AdmissionBudget:
    """Memory as one step's admission sees it. Made after the step's decodes have their blocks."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._slack = state.pool.free - state.owed_to_prefills()  # unchanged when prefills grow
        self._loads: list[tuple[int, int]] | None = None
        self._growth = 0

    def obstacle(self, seq: Sequence, blocks: int) -> WaitCause | None:
        """Why `seq`, whose prefill takes `blocks` free ones, may not start; None if it may."""
        running = len(self._state.running)
        if blocks + running > self._slack:
            return WaitCause.KV_BLOCKS
        # With nothing running, rule 1 alone decides: every accepted request can run alone.
        return WaitCause.KV_PEAK if running and self._peak_exceeds(seq, blocks) else None

    def take(self, seq: Sequence, blocks: int) -> None:
        """Take the memory of `seq`, whose prefill takes `blocks` free ones, out of the budget."""
        self._slack -= blocks
        if self._loads is not None:
            self._add(self._loads, seq)

    def _peak_exceeds(self, seq: Sequence, blocks: int) -> bool:
        pool = self._state.pool
        if self._loads is None:
            self._loads = []
            for other in self._state.running.values():
                self._add(self._loads, other)
        distinct = pool.total - self._slack + blocks
        own = self._load(seq)
        if distinct + pool.blocks_for(self._growth + own[0]) <= pool.total:
            return False  # fits even if none ended before all have grown
        return peak_blocks([*self._loads, own], distinct=distinct, block_size=pool.block_size) > pool.total

    def _add(self, loads: list[tuple[int, int]], seq: Sequence) -> None:
        load = self._load(seq)
        loads.append(load)
        self._growth += load[0]

    def _load(self, seq: Sequence) -> tuple[int, int]:
        """(positions still to be written beyond its blocks, blocks that it has or is owed)."""
        left = self._state.predictor.remaining(seq.num_output_tokens, seq.request.max_tokens)
        blocks = len(seq.blocks) if seq.phase is SequencePhase.DECODE else self._state.pool.blocks_for(seq.target)
        return left - 1, blocks  # the last token is never fed back
