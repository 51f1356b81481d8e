"""One step: who runs, which positions, in which blocks.

Order: every decode, one token each; then prefills that have begun; then admission from the queue. Three rules make
it safe when memory is short:

1. A prefill is admitted only if its whole target, and one more block for each running sequence, fits in what is free
   beyond what running prefills are still owed. So the targets of all running prefills fit in the pool together.
2. A decode that needs a block when none is free evicts the newest sequence, possibly itself; a prefill never evicts,
   it waits. By rule 1 it can always go on once no decode runs.
3. Who was evicted is shielded until it has generated another token. Every eviction therefore pays for at least one
   token, and since outputs are finite, evictions come to an end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_core.config import EngineConfig
from headrace_core.events import ScheduledSeq
from headrace_core.ledger import Ledger
from headrace_core.policies import Batching, SchedulingPolicy, eviction_key
from headrace_core.sequence import Phase, Sequence


@dataclass(slots=True)
class Draft:
    """A step in the making. `first` are those of `seqs` that had never been planned before."""

    rows: list[ScheduledSeq] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    evicted: list[tuple[Sequence, int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)


def prefill_limit(config: EngineConfig, num_decodes: int) -> int:
    """Prefill tokens that a step with `num_decodes` decodes may hold."""
    budget = config.max_num_batched_tokens
    if num_decodes == 0:
        return budget
    share = max(1, budget - int(budget * config.decode_ratio))
    # Decodes outnumber the budget only after it was lowered below what ran; they all go on.
    return max(0, min(budget - num_decodes, share))


def draft_step(ledger: Ledger) -> Draft:
    """Decide one step. Takes blocks, moves sequences between queue and batch."""
    draft = Draft()
    _secure_decodes(ledger, draft)
    decodes = [seq for seq in ledger.running.values() if seq.phase is Phase.DECODE]
    for seq in decodes:
        position = seq.computed
        ledger.grow(seq, position + 1)
        draft.seqs.append(seq)
        draft.rows.append(
            ScheduledSeq(
                request_id=seq.request_id,
                start=position,
                token_ids=(seq.tokens[position],),
                block_table=seq.blocks,
                samples=True,
                is_prefill=False,
            )
        )
    _Prefills(ledger, draft).plan()
    return draft


def _secure_decodes(ledger: Ledger, draft: Draft) -> None:
    """Evict until every decode that is left can have its next block."""
    size, pool = ledger.pool.block_size, ledger.pool
    growing = {
        seq.number
        for seq in ledger.running.values()
        if seq.phase is Phase.DECODE and seq.computed >= len(seq.blocks) * size
    }
    if len(growing) <= pool.free:
        return
    policy = SchedulingPolicy(ledger.config.scheduling_policy)
    victims = [seq for seq in ledger.running.values() if _may_be_evicted(seq, ledger.config)]
    victims.sort(key=lambda seq: eviction_key(seq, policy))
    while len(growing) > pool.free:
        victim = victims.pop()
        growing.discard(victim.number)
        draft.evicted.append((victim, ledger.evict(victim)))


def _may_be_evicted(seq: Sequence, config: EngineConfig) -> bool:
    if seq.phase is Phase.DECODE:
        return True
    # One that comes back from an eviction decodes only after it generated a token: until then rule 3 shields it.
    return config.preemptible and not seq.evicted and bool(seq.blocks)


class _Prefills:
    """The prefill half of a step."""

    def __init__(self, ledger: Ledger, draft: Draft) -> None:
        self._ledger = ledger
        self._config = ledger.config
        self._draft = draft
        self._room = prefill_limit(self._config, len(draft.rows))
        self._running = [seq for seq in ledger.running.values() if seq.phase is Phase.PREFILL]
        # Members of a static batch that were passed over as long come after those that have begun.
        self._running.sort(key=lambda seq: seq.computed == 0)
        self._partial = sum(1 for seq in self._running if seq.computed)
        self._long_busy = False  # a long prompt is in prefill
        self._closed = False  # no more prefill in this step

    def plan(self) -> None:
        self._continue()
        if self._config.batching == Batching.STATIC:
            if not self._running and not self._draft.rows:
                self._fill_batch()
                self._continue()
            return
        if self._draft.evicted:
            return  # memory is short: a newcomer would only be evicted in its turn
        is_long = self._ledger.waiting.is_long
        self._long_busy = self._long_busy or any(is_long(seq) for seq in self._running if seq.computed)
        self._admit()

    def _continue(self) -> None:
        for seq in self._running:
            if not self._has_room():
                return
            if self._long_busy and self._ledger.waiting.is_long(seq):
                continue
            size = self._slice(seq)
            if size == 0 or not self._partial_allowed(seq, size):
                self._closed = not self._config.preemptible
                return
            self._add(seq, size)

    def _admit(self) -> None:
        ledger = self._ledger
        owed = ledger.owed_to_prefills()
        while self._has_room() and len(ledger.running) < self._config.max_num_seqs:
            seq = ledger.waiting.head(allow_long=not self._long_busy)
            if seq is None or not self._fits(seq, owed):
                return
            size = self._slice(seq)
            if size == 0 or not self._partial_allowed(seq, size):
                return
            ledger.start(seq)
            self._add(seq, size)
            owed += ledger.pool.blocks_for(seq.target) - len(seq.blocks)

    def _fill_batch(self) -> None:
        """Static batching: choose who runs until the last of them ends; the budget only spreads their prefill."""
        ledger, owed = self._ledger, 0
        while len(ledger.running) < self._config.max_num_seqs:
            seq = ledger.waiting.head(allow_long=True)
            if seq is None or not self._fits(seq, owed):
                return
            ledger.start(seq)
            self._running.append(seq)
            owed += ledger.pool.blocks_for(seq.target)

    def _fits(self, seq: Sequence, owed: int) -> bool:
        """Rule 1 of the module."""
        pool = self._ledger.pool
        return pool.blocks_for(seq.target) + len(self._ledger.running) <= pool.free - owed

    def _has_room(self) -> bool:
        if self._closed:
            return False
        # A prompt that must go whole may exceed the budget if it is alone.
        return self._room > 0 or (not self._config.enable_chunked_prefill and not self._any_planned())

    def _any_planned(self) -> bool:
        return bool(self._draft.rows) and self._draft.rows[-1].is_prefill

    def _slice(self, seq: Sequence) -> int:
        """Positions of `seq` that this step may compute; 0 if it must wait."""
        pool, remaining = self._ledger.pool, seq.remaining_prefill
        covered = (len(seq.blocks) + pool.free) * pool.block_size - seq.computed
        if self._config.enable_chunked_prefill:
            return min(remaining, self._config.chunk, self._room, covered)
        fits = remaining <= self._room or not self._any_planned()
        return remaining if fits and remaining <= covered else 0

    def _partial_allowed(self, seq: Sequence, size: int) -> bool:
        """Whether the step may leave `seq` part prefilled, if it would."""
        begun, finishes = seq.computed > 0, size == seq.remaining_prefill
        return begun or finishes or self._partial < self._config.max_num_partial_prefills

    def _add(self, seq: Sequence, size: int) -> None:
        ledger, draft, end = self._ledger, self._draft, seq.computed + size
        finishes = end == seq.target
        ledger.grow(seq, end)
        if not seq.started:
            seq.started = True
            draft.first.add(seq.number)
        draft.seqs.append(seq)
        draft.rows.append(
            ScheduledSeq(
                request_id=seq.request_id,
                start=seq.computed,
                token_ids=tuple(seq.tokens[seq.computed : end]),
                block_table=seq.blocks,
                samples=finishes,
                is_prefill=True,
            )
        )
        self._room -= size
        self._partial += (not finishes) - (seq.computed > 0)
        self._long_busy = self._long_busy or ledger.waiting.is_long(seq)
        self._closed = not finishes and not self._config.preemptible
