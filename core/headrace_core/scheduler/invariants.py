"""What must hold of a scheduler between any two calls. For tests, the simulator, and the engine when it is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace_core.scheduler.prefix_cache import CachedBlock, packed
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.scheduler.sequence import Sequence, SequencePhase
from headrace_core.scheduler.state import SchedulerState


class InvariantError(AssertionError):
    """The scheduler's books are wrong. A bug in it; every violation is listed."""


def check(scheduler: Scheduler) -> None:
    """Raise `InvariantError` unless every invariant holds. Costs a walk over all live requests and blocks."""
    ledger = scheduler.ledger
    problems = [
        *_blocks(ledger),
        *_cache(ledger),
        *_places(ledger),
        *_waiting(ledger),
        *_forks(ledger),
        *_running(ledger, scheduler.max_model_len),
    ]
    if problems:
        raise InvariantError(f"{scheduler!r}: " + "; ".join(problems))


def _blocks(ledger: SchedulerState) -> Iterator[str]:
    pool = ledger.pool
    held = Counter(block for seq in ledger.running.values() for block in seq.blocks)
    free = Counter([*pool.empty_blocks(), *pool.kept_blocks()])
    everything = set(range(1, pool.num_blocks))
    if twice := sorted(block for block in free if free[block] + (block in held) > 1):
        yield f"blocks {twice} are free and held, or free twice"
    if lost := sorted(everything - held.keys() - free.keys()):
        yield f"blocks {lost} are neither free nor held by a running sequence"
    if strange := sorted((held.keys() | free.keys()) - everything):
        yield f"blocks {strange} must never be handed out"
    if wrong := {block: held[block] for block in sorted(everything) if pool.holders(block) != held[block]}:
        yield f"the pool counts other holders than there are, which is {wrong}"
    if pool.free + pool.used != pool.total or pool.used != len(held):
        yield f"free {pool.free} + used {pool.used} != total {pool.total}, or not the {len(held)} that sequences hold"


def _cache(ledger: SchedulerState) -> Iterator[str]:
    pool, entries = ledger.pool, ledger.cache.entries()
    known = {entry.block for entry in entries}
    if len(known) != len(entries) or any(ledger.cache.entry_of(entry.block) is not entry for entry in entries):
        yield "two entries of the prefix cache name one block"
    if not all(entry.live for entry in entries):
        yield "the prefix cache has entries that it calls dead"
    if wrong := sorted(block for block in range(1, pool.num_blocks) if pool.is_known(block) != (block in known)):
        yield f"blocks {wrong} are known to the pool and not to the prefix cache, or the other way round"
    if wrong := sorted(known & set(pool.empty_blocks())):
        yield f"blocks {wrong} are free without content, and can be hit"
    if wrong := sorted(set(pool.kept_blocks()) - known):
        yield f"blocks {wrong} are kept free for a content that cannot be hit"
    for seq in ledger.running.values():
        if seq.sibling is None:  # a fork learns what its blocks hold when they are filled
            yield from _chain(ledger, seq)


def _chain(ledger: SchedulerState, seq: Sequence) -> Iterator[str]:
    size = ledger.pool.block_size
    if len(seq.chain.entries) > seq.computed // size:
        yield f"{seq!r} knows content of blocks that it has not computed"
    for index, block in enumerate(seq.blocks):
        entry = ledger.cache.entry_of(block)
        if entry is not None and not _is_of(entry, seq, index, size):
            yield f"{seq!r} holds block {block} at {index}, which is published as something else"


def _is_of(entry: CachedBlock, seq: Sequence, index: int, size: int) -> bool:
    """Whether an entry, with all that it stands on, names the tokens of a sequence up to block `index`.

    It need not be the one that the sequence found or made: where hashes collide, entries displace each other.
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


def _places(ledger: SchedulerState) -> Iterator[str]:
    waiting = list(ledger.waiting)
    places = Counter([*(seq.request_id for seq in waiting), *ledger.running])
    for request_id, count in places.items():
        if count > 1:
            yield f"request {request_id!r} is in {count} places"
    if set(places) != set(ledger.live):
        yield f"live requests {sorted(ledger.live)} are not those that run or wait {sorted(places)}"
    if len(ledger.waiting) != len(waiting):
        yield f"the queue says {len(ledger.waiting)} wait, {len(waiting)} do"
    if ledger.waiting.tokens != sum(seq.target for seq in waiting if seq.sibling is None):
        yield f"the queue says {ledger.waiting.tokens} tokens wait, that is not the sum"
    ceiling = ledger.config.ceilings.get("max_num_seqs", ledger.config.max_num_seqs)
    if len(ledger.running) > max(ceiling, ledger.config.max_num_seqs):
        yield f"{len(ledger.running)} run, the boot value of max_num_seqs is {ceiling}"


def _waiting(ledger: SchedulerState) -> Iterator[str]:
    for seq in ledger.waiting:
        if seq.phase is not SequencePhase.WAITING:
            yield f"{seq!r} is in the queue"
        if seq.blocks or seq.computed:
            yield f"{seq!r} waits but holds blocks or computed positions"
        if seq.target != len(seq.tokens):
            yield f"{seq!r} waits with target {seq.target}"
        if seq.started and not seq.evicted:
            yield f"{seq!r} waits for its first chunk but counts as started"


def _forks(ledger: SchedulerState) -> Iterator[str]:
    for seq in ledger.live.values():
        sibling = seq.sibling
        if sibling is None:
            continue
        if seq.phase is SequencePhase.PREFILL:
            if seq.computed or not seq.blocks:
                yield f"{seq!r} starts as a fork, but has computed by itself or shares nothing"
        elif sibling.request_id not in ledger.live or sibling.num_output_tokens or sibling.sibling is not None:
            yield f"{seq!r} waits in vain for {sibling!r}"


def _running(ledger: SchedulerState, max_model_len: int) -> Iterator[str]:
    held: set[int] = set()
    owed = 0
    for seq in ledger.running.values():
        yield from _sequence(ledger, seq, max_model_len)
        if seq.phase is SequencePhase.PREFILL:
            held.update(seq.blocks)
            owed += ledger.pool.blocks_for(seq.target) - len(seq.blocks)
    if len(held) + owed > ledger.pool.total:
        yield (
            f"running prefills hold {len(held)} blocks and are owed {owed}, of {ledger.pool.total}: they may wait for "
            f"each other"
        )


def _sequence(ledger: SchedulerState, seq: Sequence, max_model_len: int) -> Iterator[str]:
    if seq.phase not in (SequencePhase.PREFILL, SequencePhase.DECODE):
        yield f"{seq!r} is in the batch"
    needed = ledger.pool.blocks_for(seq.computed)
    most = ledger.pool.blocks_for(seq.target if seq.phase is SequencePhase.PREFILL else len(seq.tokens))
    if not needed <= len(seq.blocks) <= most:
        yield f"{seq!r} should hold {needed} to {most} blocks"
    if seq.phase is SequencePhase.DECODE and seq.computed != len(seq.tokens) - 1:
        yield f"{seq!r} decodes with more than its newest token not computed"
    if seq.phase is SequencePhase.PREFILL and not (seq.computed < seq.target == len(seq.tokens)):
        yield f"{seq!r} prefills beyond its target {seq.target}"
    if len(seq.tokens) > max_model_len or seq.num_output_tokens >= seq.request.max_tokens:
        yield f"{seq!r} has more tokens than it may"
