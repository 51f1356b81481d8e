"""The decode half of a step: everybody who decodes gets the block it writes to, or somebody is evicted."""

from __future__ import annotations

from collections import Counter

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.policies import Order
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.step_builder import Preemption, StepBuilder


def plan_decodes(ledger: SchedulerState, draft: StepBuilder) -> None:
    """One row for each sequence that decodes, in the order of admission."""
    needy = _secure_blocks(ledger, draft)
    for seq in ledger.running.values():
        if seq.phase is not SequencePhase.DECODE:
            continue
        position = seq.computed
        if seq.number in needy:
            if (copy := ledger.unshare(seq, position)) is not None:
                draft.copies.append(copy)
            ledger.grow(seq, position + 1)
        row = ScheduledSeq(
            request_id=seq.request_id,
            start=position,
            token_ids=(seq.tokens[position],),
            block_table=seq.blocks,
            samples=True,
            is_prefill=False,
        )
        draft.add(seq, row)


def _secure_blocks(ledger: SchedulerState, draft: StepBuilder) -> dict[int, Sequence]:
    """Evict until every decode that is left can have the block that it is about to write to. Returns who needs one."""
    needy = {
        seq.number: seq for seq in ledger.running.values() if seq.phase is SequencePhase.DECODE and _needs(ledger, seq)
    }
    if _blocks_needed(ledger, needy) <= ledger.pool.free:
        return needy
    order = Order.of(ledger.config)
    victims = [seq for seq in ledger.running.values() if _may_be_evicted(seq, ledger.config)]
    victims.sort(key=order.eviction_key)
    while _blocks_needed(ledger, needy) > ledger.pool.free:
        victim = victims.pop()
        needy.pop(victim.number, None)
        other = next(iter(needy.values()), victim)
        draft.evicted.append(Preemption(victim, ledger.evict(victim), other.request_id))
    return needy


def _needs(ledger: SchedulerState, seq: Sequence) -> bool:
    index = seq.computed // ledger.pool.block_size
    return index == len(seq.blocks) or ledger.pool.holders(seq.blocks[index]) > 1


def _blocks_needed(ledger: SchedulerState, needy: dict[int, Sequence]) -> int:
    """Blocks to grow into, and to copy to: of those that share a block, the last one left may write to it."""
    pool, growing, writers = ledger.pool, 0, Counter[int]()
    for seq in needy.values():
        index = seq.computed // pool.block_size
        if index == len(seq.blocks):
            growing += 1
        else:
            writers[seq.blocks[index]] += 1
    return growing + sum(min(count, pool.holders(block) - 1) for block, count in writers.items())


def _may_be_evicted(seq: Sequence, config: EngineConfig) -> bool:
    if seq.phase is SequencePhase.DECODE:
        return True
    # One that comes back from an eviction decodes only after it generated a token: until then rule 3 shields it.
    return config.preemptible and not seq.evicted and bool(seq.blocks)
