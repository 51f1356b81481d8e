"""Rules for a plan, recomputed from the state around it. Each function raises AssertionError."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from hypothesis import event

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import Request, ScheduledSeq, StepPlan
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.scheduler.sequence import Sequence as Seq
from headrace_core.scheduler.sequence import SequencePhase
from headrace_core.scheduler.wait_cause import WaitCause


class Before:
    """The state of a scheduler before a plan."""

    def __init__(self, scheduler: Scheduler) -> None:
        state = scheduler.state
        self.running = list(state.running.values())
        self.decodes = [seq.request_id for seq in self.running if seq.phase is SequencePhase.DECODE]
        self.queue = [seq for seq in state.waiting if seq.sibling is None]
        self.forks = [seq for seq in state.waiting if seq.sibling is not None]
        self.tables = {seq.request_id: seq.blocks for seq in self.running}


def prefill_rows(plan: StepPlan) -> list[ScheduledSeq]:
    return [row for row in plan.seqs if row.is_prefill and row.fork_of is None]


def prefilling(scheduler: Scheduler) -> list[Seq]:
    return [seq for seq in scheduler.state.running.values() if seq.phase is SequencePhase.PREFILL]


def part_prefilled(plan: StepPlan, scheduler: Scheduler) -> list[Seq]:
    """Sequences whose prefill will have begun and not ended after the step."""
    rows = {row.request_id: row for row in plan.seqs}
    return [
        seq
        for seq in prefilling(scheduler)
        if (not rows[seq.request_id].samples if seq.request_id in rows else seq.begun)
    ]


def check_blocks(plan: StepPlan, before: Before, scheduler: Scheduler) -> None:
    """Whoever writes to a block has it alone, but for forks of what is written, and its content is nobody else's."""
    pool, size = scheduler.state.pool, scheduler.config.block_size
    forks = {row.request_id for row in plan.seqs if row.fork_of is not None}
    writers = [seq for seq in scheduler.state.running.values() if seq.request_id not in forks]
    holders = Counter(block for seq in writers for block in seq.blocks)
    copies = {target: source for source, target in plan.copies}
    assert len(copies) == len(plan.copies)
    assert not set(copies) & {source for source, _ in plan.copies}, "copies may run in any order"
    for row in plan.seqs:
        assert 0 not in row.block_table
        assert len(set(row.block_table)) == len(row.block_table)
        assert len(row.block_table) == -(-(row.start + row.num_tokens) // size), "no more blocks than it needs"
        written = {(row.start + offset) // size for offset in range(row.num_tokens)}
        for index in written:
            assert holders[row.block_table[index]] == 1, "a block that others hold is not written"
            assert not pool.is_known(row.block_table[index]), "a published block is not written"
        old = before.tables.get(row.request_id, ())
        for index, block in enumerate(old[: len(row.block_table)]):
            if row.request_id not in plan.preempted and block != row.block_table[index]:
                event("copied on write")
                assert index in written
                assert copies.pop(row.block_table[index]) == block
    assert not copies, "nothing else is copied"


def check_decodes(plan: StepPlan, before: Before) -> None:
    kinds = [row.is_prefill for row in plan.seqs]
    assert kinds == sorted(kinds), "decodes come first"
    planned = [row.request_id for row in plan.seqs if not row.is_prefill]
    assert planned == [request_id for request_id in before.decodes if request_id not in plan.preempted], "all advance"
    assert all(row.num_tokens == 1 for row in plan.seqs if not row.is_prefill)


def prefill_share(config: EngineConfig, decodes: int) -> int:
    """Prefill tokens of a step: what decodes leave, and while any runs at most the share that is not theirs."""
    if not decodes:
        return config.max_num_batched_tokens
    share = max(1, config.max_num_batched_tokens - ceil(config.max_num_batched_tokens * config.decode_ratio - 1e-9))
    return min(config.max_num_batched_tokens - decodes, share)


def check_limits(plan: StepPlan, config: EngineConfig) -> None:
    rows = prefill_rows(plan)
    alone_and_whole = not config.enable_chunked_prefill and len(rows) == 1
    if rows and not alone_and_whole:
        assert plan.num_prefill_tokens <= prefill_share(config, plan.num_decode_tokens)
    if config.enable_chunked_prefill:
        assert all(row.num_tokens <= config.chunk for row in rows)
    else:
        assert all(row.samples for row in rows)


def check_forks(plan: StepPlan, before: Before, scheduler: Scheduler) -> None:
    """A fork starts with its sibling's last chunk if there is room, and only then."""
    config = scheduler.config
    rows = {row.request_id: row for row in plan.seqs}
    places = [row.request_id for row in plan.seqs]
    for row in plan.seqs:
        if row.fork_of is not None:
            event("forked")
            sibling = rows[row.fork_of]
            assert sibling.samples
            assert sibling.is_prefill
            assert places.index(row.fork_of) < places.index(row.request_id)
            assert (row.token_ids, row.samples, row.is_prefill) == ((), True, True)
            assert row.block_table == sibling.block_table
            assert row.start == sibling.start + sibling.num_tokens
    asked: set[str] = set()
    for seq in before.forks:
        sibling = seq.sibling
        if seq.phase is not SequencePhase.WAITING or sibling is None or not _ends_prefill(rows.get(sibling.request_id)):
            continue
        if sibling.request_id in asked:
            continue  # behind another fork, which had no room
        asked.add(sibling.request_id)
        full = len(scheduler.state.running) >= config.max_num_seqs or plan.preempted
        assert full or memory_obstacle(scheduler, seq, 0), f"{seq!r} could have started as a fork in {plan}"


def _ends_prefill(row: ScheduledSeq | None) -> bool:
    return row is not None and row.is_prefill and row.samples


def check_prefill_order(plan: StepPlan, scheduler: Scheduler, back_to_back: str | None) -> str | None:
    """Returns who must be first in the next step that prefills."""
    state, preemptible = scheduler.state, scheduler.config.preemptible
    rows = prefill_rows(plan)
    assert sum(state.waiting.is_long(state.live[row.request_id]) for row in rows) <= 1
    if preemptible:
        return None
    assert all(row.samples for row in rows[:-1]), "nothing passes an unfinished prefill"
    if back_to_back in state.live:
        assert back_to_back not in plan.preempted
        assert not rows or rows[0].request_id == back_to_back
    if rows and not rows[-1].samples:
        return rows[-1].request_id
    return back_to_back if back_to_back not in {row.request_id for row in rows} else None


def expected_peak(scheduler: Scheduler, extra: Sequence[Seq], blocks: int) -> int:
    """The most blocks that all who run, and `extra`, would hold if each ended when it is expected to."""
    state, size = scheduler.state, scheduler.config.block_size
    loads = []
    for seq in (*state.running.values(), *extra):
        left = state.predictor.remaining(seq.num_output_tokens, seq.request.max_tokens) - 1
        held = len(seq.blocks) if seq.phase is SequencePhase.DECODE else -(-len(seq.tokens) // size)
        loads.append((left, held))
    owed = sum(-(-len(seq.tokens) // size) - len(seq.blocks) for seq in prefilling(scheduler))
    now = state.pool.used + owed + blocks
    peaks = []
    for length, _ in loads:
        going_on = [(left, held) for left, held in loads if left >= length]
        peaks.append(min(now, sum(held for _, held in going_on)) + ceil(len(going_on) * length / size))
    return max(peaks)


def memory_obstacle(scheduler: Scheduler, seq: Seq, blocks: int) -> WaitCause | None:
    state = scheduler.state
    owed = sum(state.pool.blocks_for(len(other.tokens)) - len(other.blocks) for other in prefilling(scheduler))
    if blocks + len(state.running) > state.pool.free - owed:
        return WaitCause.KV_BLOCKS
    if state.running and expected_peak(scheduler, [seq], blocks) > state.pool.total:
        return WaitCause.KV_PEAK
    return None


def check_admission(plan: StepPlan, before: Before, scheduler: Scheduler) -> None:
    config, state = scheduler.config, scheduler.state
    old = {seq.request_id for seq in before.running}
    forks = {row.request_id for row in plan.seqs if row.fork_of is not None}
    joined = [seq for seq in state.running.values() if seq.request_id not in old]
    new = [seq for seq in joined if seq.request_id not in forks]
    if not joined:
        return
    assert not plan.preempted
    assert len(state.running) <= config.max_num_seqs
    assert config.batching == "continuous" or not before.running, "nobody joins a static batch"
    owed = sum(state.pool.blocks_for(len(s.tokens)) - len(s.blocks) for s in prefilling(scheduler))
    assert state.pool.free - owed >= len(state.running) - 1, "room for each one's next block is left"
    assert len(state.running) == 1 or expected_peak(scheduler, [], 0) <= state.pool.total, "the peak fits"
    is_long = state.waiting.is_long
    if config.batching == "continuous" and any(is_long(seq) for seq in new):
        still = [seq for seq in prefilling(scheduler) if seq.request_id not in forks]
        assert sum(map(is_long, still)) == 1, "one long prompt at a time"
    if config.long_prefill_token_threshold == 0:
        assert new == before.queue[: len(new)], "the queue is served in order"
    rows = {row.request_id: row for row in plan.seqs}
    if any(seq.request_id in rows and not rows[seq.request_id].samples for seq in new):
        assert len(part_prefilled(plan, scheduler)) <= config.max_num_partial_prefills


def check_evictions(plan: StepPlan, requests: Mapping[str, Request], scheduler: Scheduler) -> None:
    config = scheduler.config

    def newness(request_id: str) -> tuple[float, ...]:
        request = requests[request_id]
        rank = request.priority + (
            request.arrival / config.priority_ageing_seconds if config.priority_ageing_seconds else 0
        )
        first = (rank,) if config.scheduling_policy == "priority" else ()
        return (*first, request.arrival, int(request_id[1:]))

    survivors = [newness(row.request_id) for row in plan.seqs if not row.is_prefill]
    for victim in plan.preempted:
        event("evicted")
        assert all(newness(victim) > survivor for survivor in survivors), "the newest goes first"
        assert victim in {seq.request_id for seq in scheduler.state.waiting}


def obstacle_of_head(plan: StepPlan, before: Before, scheduler: Scheduler) -> tuple[Seq, WaitCause | None] | None:
    """The first in the queue that may go now, and why it did not; None if there is nobody. With None it could have."""
    config, state = scheduler.config, scheduler.state
    is_long, rows, part = state.waiting.is_long, prefill_rows(plan), part_prefilled(plan, scheduler)
    queue = [seq for seq in state.waiting if seq.sibling is None]
    if config.batching == "static":
        if not queue:
            return None
        if before.running:
            return queue[0], WaitCause.STATIC_BATCH
        return queue[0], _no_place(plan, scheduler) or _no_memory(scheduler, queue[0])
    busy = any(is_long(state.live[row.request_id]) for row in rows) or any(is_long(seq) for seq in part)
    head = next((seq for seq in queue if not (busy and is_long(seq))), None)
    if head is None:
        return None
    cause = _no_place(plan, scheduler) or _no_tokens(plan, scheduler, part) or _no_memory(scheduler, head)
    return head, cause or _no_slice(plan, scheduler, head, part)


def _no_place(plan: StepPlan, scheduler: Scheduler) -> WaitCause | None:
    if plan.preempted:
        return WaitCause.KV_BLOCKS
    full = len(scheduler.state.running) >= scheduler.config.max_num_seqs
    return WaitCause.SEQUENCE_CAP if full else None


def _room_left(plan: StepPlan, config: EngineConfig) -> int:
    return prefill_share(config, plan.num_decode_tokens) - plan.num_prefill_tokens


def _no_tokens(plan: StepPlan, scheduler: Scheduler, part: Sequence[Seq]) -> WaitCause | None:
    config = scheduler.config
    if part and not config.preemptible:
        return WaitCause.PREFILL_OF_OTHERS
    goes_whole = not config.enable_chunked_prefill and not prefill_rows(plan)
    return None if goes_whole or _room_left(plan, config) > 0 else WaitCause.TOKEN_BUDGET


def _no_memory(scheduler: Scheduler, head: Seq) -> WaitCause | None:
    found = scheduler.state.find(head)
    return memory_obstacle(scheduler, head, scheduler.state.blocks_needed(head, found))


def _no_slice(plan: StepPlan, scheduler: Scheduler, head: Seq, part: Sequence[Seq]) -> WaitCause | None:
    config, room = scheduler.config, _room_left(plan, scheduler.config)
    left = len(head.tokens) - len(scheduler.state.find(head)) * config.block_size
    if not config.enable_chunked_prefill:
        return WaitCause.TOKEN_BUDGET if prefill_rows(plan) and left > room else None
    would_be_partial = min(left, config.chunk, room) < left and len(part) >= config.max_num_partial_prefills
    return WaitCause.PARTIAL_PREFILL_LIMIT if would_be_partial else None
