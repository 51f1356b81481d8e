"""What must hold of a scheduler between any two calls. For tests, the simulator, and the engine when it is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace_core.ledger import Ledger
from headrace_core.scheduler import Scheduler
from headrace_core.sequence import Phase, Sequence


class InvariantError(AssertionError):
    """The scheduler's books are wrong. A bug in it; every violation is listed."""


def check(scheduler: Scheduler) -> None:
    """Raise `InvariantError` unless every invariant holds. Costs a walk over all live requests and blocks."""
    ledger = scheduler.ledger
    problems = [*_blocks(ledger), *_places(ledger), *_waiting(ledger), *_running(ledger, scheduler.max_model_len)]
    if problems:
        raise InvariantError(f"{scheduler!r}: " + "; ".join(problems))


def _blocks(ledger: Ledger) -> Iterator[str]:
    pool = ledger.pool
    held = [block for seq in ledger.running.values() for block in seq.blocks]
    free = pool.free_blocks()
    counts = Counter(held) + Counter(free)
    twice = sorted(block for block, count in counts.items() if count > 1)
    lost = sorted(set(range(1, pool.num_blocks)) - set(counts))
    strange = sorted(set(counts) - set(range(1, pool.num_blocks)))
    if twice:
        yield f"blocks {twice} are owned twice"
    if lost:
        yield f"blocks {lost} are neither free nor held by a running sequence"
    if strange:
        yield f"blocks {strange} must never be handed out"
    if pool.free + pool.used != pool.total or pool.used != len(held):
        yield f"free {pool.free} + used {pool.used} != total {pool.total}, or not the {len(held)} that sequences hold"
    unmarked = sorted(block for block in set(held) if not pool.is_taken(block))
    if unmarked or any(pool.is_taken(block) for block in free):
        yield f"the pool's marks disagree with the holders (held but not marked: {unmarked})"


def _places(ledger: Ledger) -> Iterator[str]:
    waiting = [seq.request_id for seq in ledger.waiting]
    places = Counter([*waiting, *ledger.running])
    for request_id, count in places.items():
        if count > 1:
            yield f"request {request_id!r} is in {count} places"
    if set(places) != set(ledger.live):
        yield f"live requests {sorted(ledger.live)} are not those that run or wait {sorted(places)}"
    if len(ledger.waiting) != len(waiting):
        yield f"the queue says {len(ledger.waiting)} wait, {len(waiting)} do"
    if ledger.waiting.tokens != sum(seq.target for seq in ledger.waiting):
        yield f"the queue says {ledger.waiting.tokens} tokens wait, that is not the sum"
    ceiling = ledger.config.ceilings.get("max_num_seqs", ledger.config.max_num_seqs)
    if len(ledger.running) > max(ceiling, ledger.config.max_num_seqs):
        yield f"{len(ledger.running)} run, the boot value of max_num_seqs is {ceiling}"


def _waiting(ledger: Ledger) -> Iterator[str]:
    for seq in ledger.waiting:
        if seq.phase is not Phase.WAITING:
            yield f"{seq!r} is in the queue"
        if seq.blocks or seq.computed:
            yield f"{seq!r} waits but holds blocks or computed positions"
        if seq.target != len(seq.tokens):
            yield f"{seq!r} waits with target {seq.target}"


def _running(ledger: Ledger, max_model_len: int) -> Iterator[str]:
    promised = 0
    for seq in ledger.running.values():
        yield from _sequence(ledger, seq, max_model_len)
        if seq.phase is Phase.PREFILL:
            promised += ledger.pool.blocks_for(seq.target)
    if promised > ledger.pool.total:
        yield f"running prefills are promised {promised} blocks of {ledger.pool.total}: they may wait for each other"


def _sequence(ledger: Ledger, seq: Sequence, max_model_len: int) -> Iterator[str]:
    if seq.phase not in (Phase.PREFILL, Phase.DECODE):
        yield f"{seq!r} is in the batch"
    needed = ledger.pool.blocks_for(seq.computed)
    most = ledger.pool.blocks_for(seq.target if seq.phase is Phase.PREFILL else len(seq.tokens))
    if not needed <= len(seq.blocks) <= most:
        yield f"{seq!r} should hold {needed} to {most} blocks"
    if seq.phase is Phase.DECODE and seq.computed != len(seq.tokens) - 1:
        yield f"{seq!r} decodes with more than its newest token not computed"
    if seq.phase is Phase.PREFILL and not (seq.computed < seq.target == len(seq.tokens)):
        yield f"{seq!r} prefills beyond its target {seq.target}"
    if len(seq.tokens) > max_model_len or seq.num_output_tokens >= seq.request.max_tokens:
        yield f"{seq!r} has more tokens than it may"
