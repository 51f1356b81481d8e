"""The decode half of a step: each decoding sequence gets the block it writes to, if need be by evicting another."""

from __future__ import annotations

from collections import Counter

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.planning import Preemption, StepBuilder
from headrace_core.scheduler.policies import Order
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState


def plan_decodes(state: SchedulerState, builder: StepBuilder) -> None:
    """Add one row for each decoding sequence, in the order of admission."""
    needy = _secure_blocks(state, builder)
    for seq in state.running.values():
        if seq.phase is not SequencePhase.DECODE:
            continue
        position = seq.computed
        if seq.number in needy:
            if (copy := state.unshare(seq, position)) is not None:
                builder.copies.append(copy)
            state.grow(seq, position + 1)
        row = ScheduledSeq(
            request_id=seq.request_id,
            start=position,
            token_ids=(seq.tokens[position],),
            block_table=seq.blocks,
            samples=True,
            is_prefill=False,
        )
        builder.add(seq, row)


def _secure_blocks(state: SchedulerState, builder: StepBuilder) -> dict[int, Sequence]:
    """Evict until each remaining decode can have the block it will write to. Returns those that need one, by number."""
    needy = {
        seq.number: seq for seq in state.running.values() if seq.phase is SequencePhase.DECODE and _needs(state, seq)
    }
    if _blocks_needed(state, needy) <= state.pool.free:
        return needy
    order = Order.of(state.config)
    victims = [seq for seq in state.running.values() if _may_be_evicted(seq, state.config)]
    victims.sort(key=order.eviction_key)
    while _blocks_needed(state, needy) > state.pool.free:
        victim = victims.pop()
        needy.pop(victim.number, None)
        other = next(iter(needy.values()), victim)
        builder.evicted.append(Preemption(victim, state.evict(victim), other.request_id))
    return needy


def _needs(state: SchedulerState, seq: Sequence) -> bool:
    index = seq.computed // state.pool.block_size
    return index == len(seq.blocks) or state.pool.holders(seq.blocks[index]) > 1


def _blocks_needed(state: SchedulerState, needy: dict[int, Sequence]) -> int:
    """Blocks to grow into and to copy to. Of the sequences that share a block, the last one may write to it itself."""
    pool, growing, writers = state.pool, 0, Counter[int]()
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
    # A sequence restarted after an eviction stays in PREFILL until it has generated a token: rule 3 shields it.
    return config.preemptible and not seq.evicted and bool(seq.blocks)
