"""What must hold for a scheduler between any two calls. Used by tests, the simulator and the idle engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace_core.scheduler.prefix_cache import CachedBlock, packed
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState


class InvariantError(AssertionError):
    """The scheduler's state is inconsistent, which is a bug in it. Lists every violation."""


def check(scheduler: Scheduler) -> None:
    """Raise `InvariantError` unless every invariant holds. Walks over all live requests and blocks."""
    state = scheduler.state
    problems = [
        *_blocks(state),
        *_cache(state),
        *_places(state),
        *_waiting(state),
        *_forks(state),
        *_running(state, scheduler.max_model_len),
    ]
    if problems:
        raise InvariantError(f"{scheduler!r}: " + "; ".join(problems))


def _blocks(state: SchedulerState) -> Iterator[str]:
    pool = state.pool
    held = Counter(block for seq in state.running.values() for block in seq.blocks)
    free = Counter([*pool.empty_blocks(), *pool.kept_blocks()])
    everything = set(range(1, pool.num_blocks))
    if twice := sorted(block for block in free if free[block] + (block in held) > 1):
        yield f"blocks {twice} are free and held, or free twice"
    if lost := sorted(everything - held.keys() - free.keys()):
        yield f"blocks {lost} are neither free nor held by a running sequence"
    if strange := sorted((held.keys() | free.keys()) - everything):
        yield f"blocks {strange} must never be handed out"
    if wrong := {block: held[block] for block in sorted(everything) if pool.holders(block) != held[block]}:
        yield f"the pool's holder counts are wrong; blocks are really held by {wrong}"
    if pool.free + pool.used != pool.total or pool.used != len(held):
        yield f"free {pool.free} + used {pool.used} != total {pool.total}, or the {len(held)} held"


def _cache(state: SchedulerState) -> Iterator[str]:
    pool, entries = state.pool, state.cache.entries()
    known = {entry.block for entry in entries}
    if len(known) != len(entries) or any(state.cache.entry_of(entry.block) is not entry for entry in entries):
        yield "two entries of the prefix cache name the same block"
    if not all(entry.live for entry in entries):
        yield "the prefix cache holds entries that are marked dead"
    if wrong := sorted(block for block in range(1, pool.num_blocks) if pool.is_known(block) != (block in known)):
        yield f"blocks {wrong} are known to only one of the pool and the prefix cache"
    if wrong := sorted(known & set(pool.empty_blocks())):
        yield f"blocks {wrong} are free without content, and can be hit"
    if wrong := sorted(set(pool.kept_blocks()) - known):
        yield f"blocks {wrong} are kept for content that cannot be hit"
    for seq in state.running.values():
        if seq.sibling is None:  # a fork gets its chain when its blocks are filled
            yield from _chain(state, seq)


def _chain(state: SchedulerState, seq: Sequence) -> Iterator[str]:
    size = state.pool.block_size
    if len(seq.chain.entries) > seq.computed // size:
        yield f"{seq!r} has cache entries for blocks that it has not computed"
    for index, block in enumerate(seq.blocks):
        entry = state.cache.entry_of(block)
        if entry is not None and not _is_of(entry, seq, index, size):
            yield f"{seq!r} holds block {block} at {index}, which is published as something else"


def _is_of(entry: CachedBlock, seq: Sequence, index: int, size: int) -> bool:
    """Whether an entry and its ancestors name the tokens of a sequence up to block `index`.

    It need not be the entry that the sequence found or made: where hashes collide, entries displace each other.
    """
    at: CachedBlock | None = entry
    for number in range(index, -1, -1):
        if (
            at is None
            or at.salt != seq.chain.salt
            or at.key[1] != packed(seq.tokens[number * size : number * size + size])
        ):
            return False
        at = at.parent
    return at is None


def _places(state: SchedulerState) -> Iterator[str]:
    waiting = list(state.waiting)
    places = Counter([*(seq.request_id for seq in waiting), *state.running])
    for request_id, count in places.items():
        if count > 1:
            yield f"request {request_id!r} is in {count} places"
    if set(places) != set(state.live):
        yield f"live requests {sorted(state.live)} are not the running and waiting ones {sorted(places)}"
    if len(state.waiting) != len(waiting):
        yield f"the queue says {len(state.waiting)} wait, but {len(waiting)} do"
    if state.waiting.tokens != sum(seq.target for seq in waiting if seq.sibling is None):
        yield f"the queue says {state.waiting.tokens} tokens wait, which is not the sum"
    ceiling = state.config.ceilings.get("max_num_seqs", state.config.max_num_seqs)
    if len(state.running) > max(ceiling, state.config.max_num_seqs):
        yield f"{len(state.running)} run, but the boot value of max_num_seqs is {ceiling}"


def _waiting(state: SchedulerState) -> Iterator[str]:
    for seq in state.waiting:
        if seq.phase is not SequencePhase.WAITING:
            yield f"{seq!r} is in the queue"
        if seq.blocks or seq.computed:
            yield f"{seq!r} waits but holds blocks or computed positions"
        if seq.target != len(seq.tokens):
            yield f"{seq!r} waits with target {seq.target}, which is not its number of tokens"
        if seq.started and not seq.evicted:
            yield f"{seq!r} waits for its first chunk but counts as started"


def _forks(state: SchedulerState) -> Iterator[str]:
    for seq in state.live.values():
        sibling = seq.sibling
        if sibling is None:
            continue
        if seq.phase is SequencePhase.PREFILL:
            if seq.computed or not seq.blocks:
                yield f"{seq!r} starts as a fork, but has computed positions itself or shares nothing"
        elif sibling.request_id not in state.live or sibling.num_output_tokens or sibling.sibling is not None:
            yield f"{seq!r} waits for {sibling!r}, whose prefill it can no longer share"


def _running(state: SchedulerState, max_model_len: int) -> Iterator[str]:
    held: set[int] = set()
    owed = 0
    for seq in state.running.values():
        yield from _sequence(state, seq, max_model_len)
        if seq.phase is SequencePhase.PREFILL:
            held.update(seq.blocks)
            owed += state.pool.blocks_for(seq.target) - len(seq.blocks)
    if len(held) + owed > state.pool.total:
        yield (
            f"running prefills hold {len(held)} blocks and are owed {owed}, of {state.pool.total}: they may wait for "
            f"each other"
        )


def _sequence(state: SchedulerState, seq: Sequence, max_model_len: int) -> Iterator[str]:
    if seq.phase not in (SequencePhase.PREFILL, SequencePhase.DECODE):
        yield f"{seq!r} is in the batch"
    needed = state.pool.blocks_for(seq.computed)
    most = state.pool.blocks_for(seq.target if seq.phase is SequencePhase.PREFILL else len(seq.tokens))
    if not needed <= len(seq.blocks) <= most:
        yield f"{seq!r} should hold {needed} to {most} blocks"
    if seq.phase is SequencePhase.DECODE and seq.computed != len(seq.tokens) - 1:
        yield f"{seq!r} decodes, but more than its newest token is not computed"
    if seq.phase is SequencePhase.PREFILL and not (seq.computed < seq.target == len(seq.tokens)):
        yield f"{seq!r} prefills beyond its target {seq.target}"
    if len(seq.tokens) > max_model_len or seq.num_output_tokens >= seq.request.max_tokens:
        yield f"{seq!r} has more tokens than it may"
