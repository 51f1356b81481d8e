"""A driver that checks each plan and outcome of a scheduler, with a model whose KV cache is real.

The fake model keeps what was written to each block and derives the next token from all that it reads back through
the block table. So a wrong position, a shared block or a missed recomputation changes the output.
"""

import pickle
import zlib
from collections import Counter
from collections.abc import Mapping
from math import floor

import pytest
from hypothesis import event

from headrace_core import events, invariants
from headrace_core.config import resolve
from headrace_core.events import FinishReason, Request, ScheduledSeq, StepPlan, StepResult
from headrace_core.scheduler import Scheduler
from headrace_core.sequence import Phase, Sequence

VOCABULARY = 50
MODEL_LEN = 24
CEILINGS = {"max_num_seqs": 12, "max_num_batched_tokens": 32}


def next_token(tokens: tuple[int, ...]) -> int:
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def unscheduled(request: Request) -> list[int]:
    """What the model generates for a request alone."""
    tokens, output = request.prompt_token_ids, []
    while len(output) < request.max_tokens:
        output.append(next_token((*tokens, *output)))
        if output[-1] in request.stop_token_ids:
            break
    return output


class FakeModel:
    """Writes rows to its KV cache, then reads each sampling sequence's whole context from it."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._cache: dict[tuple[int, int], int] = {}

    def run(self, plan: StepPlan) -> dict[str, int]:
        for row in plan.seqs:
            for offset, token in enumerate(row.token_ids):
                self._cache[self._slot(row, row.start + offset)] = token
        return {
            row.request_id: next_token(
                tuple(self._cache[self._slot(row, p)] for p in range(row.start + row.num_tokens))
            )
            for row in plan.seqs
            if row.samples
        }

    def _slot(self, row: ScheduledSeq, position: int) -> tuple[int, int]:
        return row.block_table[position // self._size], position % self._size


class Harness:
    """Drives a scheduler and checks each plan and outcome against the documented rules."""

    def __init__(self, knobs: Mapping[str, object], num_blocks: int) -> None:
        config = self.initial = resolve(knobs, ceilings=CEILINGS)
        self.scheduler = Scheduler(config, num_blocks=num_blocks, max_model_len=MODEL_LEN)
        self.model = FakeModel(config.block_size)
        self.now = 0.0
        self.log: list[tuple[str, tuple[object, ...]]] = []
        self.plans: list[StepPlan] = []
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.computed: Counter[str] = Counter()
        self.shielded: set[str] = set()
        self.begun: set[str] = set()
        self.cut_short: set[str] = set()  # ended by the driver
        self.back_to_back: str | None = None
        self.plan_in_flight: StepPlan | None = None

    def call(self, name: str, *args: object) -> object:
        self.now += 0.25
        self.log.append((name, (*args, self.now)))
        return getattr(self.scheduler, name)(*args, self.now)

    # What the driver does

    def submit(self, prompt: tuple[int, ...], max_tokens: int, stop: frozenset[int], priority: int) -> None:
        request = Request(
            request_id=f"r{len(self.requests)}",
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            arrival=self.now,
            stop_token_ids=stop,
            priority=priority,
        )
        answer = self.call("submit", request)
        if isinstance(answer, events.Rejected):
            assert answer.reason in (
                events.RejectReason.QUEUE_FULL,
                events.RejectReason.NEVER_FITS,
                events.RejectReason.TOO_LONG,
            )
            assert (answer.retry_after is not None) == (answer.reason is events.RejectReason.QUEUE_FULL)
            return
        assert answer == events.Admitted(request.request_id)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    def end(self, request_id: str, *, reason: FinishReason | None = None) -> None:
        answer = self.call("abort", request_id) if reason is None else self.call("finish", request_id, reason)
        if request_id in self.ended:
            assert answer is None
            return
        self.cut_short.add(request_id)
        self.ended[request_id] = reason or FinishReason.ABORT
        assert answer == events.Finished(request_id, self.ended[request_id], len(self.outputs[request_id]))

    def reconfigure(self, changes: Mapping[str, object]) -> None:
        before, generation = self.scheduler.config, self.scheduler.generation
        answer = self.call("reconfigure", changes)
        changed = self.scheduler.config != before
        if isinstance(answer, events.Refused):
            assert answer.problems
            assert not changed
        assert self.scheduler.generation == generation + changed
        if isinstance(answer, events.Reconfigured):
            assert answer == events.Reconfigured(generation + changed, self.scheduler.config)

    def plan(self) -> StepPlan | None:
        ledger = self.scheduler.ledger
        before = list(ledger.running.values())
        decodes = [seq.request_id for seq in before if seq.phase is Phase.DECODE]
        queue = list(ledger.waiting)
        plan = self.call("plan")
        assert (plan is None) == (not self.scheduler.has_work), "work never waits for nothing"
        if not isinstance(plan, StepPlan):
            return None
        self.plan_in_flight = plan
        self.plans.append(plan)
        for request_id in plan.preempted:
            assert request_id not in self.shielded, "evicted again before it made progress"
            self.shielded.add(request_id)
            self.computed[request_id] = 0
        self._check_rows(plan)
        self._check_decodes(plan, decodes)
        self._check_limits(plan)
        self._check_prefill_order(plan)
        self._check_admission(plan, before, queue)
        self._check_evictions(plan)
        self._check_work_conserving(plan)
        return plan

    def commit(self, failed: frozenset[str] = frozenset()) -> None:
        plan, self.plan_in_flight = self.plan_in_flight, None
        assert plan is not None
        result = StepResult(tokens=self.model.run(plan), failed=failed)
        outcomes = self.call("commit", plan, result)
        assert isinstance(outcomes, tuple)
        for row in plan.seqs:
            if row.request_id not in self.ended and row.request_id not in failed:
                self.computed[row.request_id] += row.num_tokens
        for outcome in outcomes:
            self._take(outcome, plan, failed)
        for request_id in failed & {row.request_id for row in plan.seqs}:
            assert request_id in self.ended

    def _take(self, outcome: object, plan: StepPlan, failed: frozenset[str]) -> None:
        match outcome:
            case events.Started(request_id):
                assert request_id not in self.begun
                self.begun.add(request_id)
            case events.Token(request_id, token, index):
                assert request_id not in self.ended
                assert request_id in self.begun
                assert index == len(self.outputs[request_id])
                self.outputs[request_id].append(token)
                self.shielded.discard(request_id)
            case events.Preempted(request_id):
                assert request_id in plan.preempted
                assert request_id not in self.ended
            case events.Finished(request_id, reason, count):
                assert request_id not in self.ended, "ends exactly once"
                self.ended[request_id] = reason
                assert count == len(self.outputs[request_id])
                assert (reason is FinishReason.ERROR) == (request_id in failed)
            case _:
                raise AssertionError(outcome)

    # What must hold of a plan

    def _check_rows(self, plan: StepPlan) -> None:
        size = self.scheduler.config.block_size
        owners: Counter[int] = Counter()
        for row in plan.seqs:
            known = (*self.requests[row.request_id].prompt_token_ids, *self.outputs[row.request_id])
            end = row.start + row.num_tokens
            assert row.start == self.computed[row.request_id], "no position twice, none left out"
            assert row.token_ids == known[row.start : end]
            assert row.num_tokens > 0
            assert row.samples == (end == len(known))
            assert len(row.block_table) == -(-end // size), "no more blocks than the planned positions need"
            owners.update(row.block_table)
        assert 0 not in owners
        assert all(count == 1 for count in owners.values())
        assert len({row.request_id for row in plan.seqs}) == len(plan.seqs)
        assert plan.generation == self.scheduler.generation
        assert plan.step == len(self.plans)

    def _check_decodes(self, plan: StepPlan, decodes: list[str]) -> None:
        kinds = [row.is_prefill for row in plan.seqs]
        assert kinds == sorted(kinds), "decodes come first"
        planned = [row.request_id for row in plan.seqs if not row.is_prefill]
        assert planned == [request_id for request_id in decodes if request_id not in plan.preempted]
        assert all(row.num_tokens == 1 for row in plan.seqs if not row.is_prefill)

    def _check_limits(self, plan: StepPlan) -> None:
        config = self.scheduler.config
        prefills = [row for row in plan.seqs if row.is_prefill]
        budget = config.max_num_batched_tokens
        alone_and_whole = not config.enable_chunked_prefill and len(prefills) == 1
        if prefills and not alone_and_whole:
            assert plan.num_tokens <= budget
            if plan.num_decode_tokens:
                assert plan.num_prefill_tokens <= max(1, budget - floor(budget * config.decode_ratio))
        if config.enable_chunked_prefill:
            assert all(row.num_tokens <= config.chunk for row in prefills)
        else:
            assert all(row.samples for row in prefills)

    def _check_prefill_order(self, plan: StepPlan) -> None:
        ledger, preemptible = self.scheduler.ledger, self.scheduler.config.preemptible
        prefills = [row for row in plan.seqs if row.is_prefill]
        long = [row for row in prefills if ledger.waiting.is_long(ledger.live[row.request_id])]
        assert len(long) <= 1
        if not preemptible:
            assert all(row.samples for row in prefills[:-1]), "nothing passes an unfinished prefill"
            if self.back_to_back in ledger.live:
                assert self.back_to_back not in plan.preempted
                assert not prefills or prefills[0].request_id == self.back_to_back
        unfinished = [row.request_id for row in prefills if not row.samples]
        if unfinished and not preemptible:
            self.back_to_back = unfinished[0]
        elif preemptible or self.back_to_back in {row.request_id for row in prefills}:
            self.back_to_back = None

    def _check_admission(self, plan: StepPlan, before: list[Sequence], queue: list[Sequence]) -> None:
        config, ledger = self.scheduler.config, self.scheduler.ledger
        old = {seq.request_id for seq in before}
        new = [seq for seq in ledger.running.values() if seq.request_id not in old]
        if not new:
            return
        assert not plan.preempted
        assert len(ledger.running) <= config.max_num_seqs
        assert config.batching == "continuous" or not before, "nobody joins a static batch"
        owed = sum(ledger.pool.blocks_for(len(s.tokens)) - len(s.blocks) for s in self._prefilling())
        assert ledger.pool.free - owed >= len(ledger.running) - 1, "room for each one's next block is left"
        is_long = ledger.waiting.is_long
        if config.batching == "continuous" and any(is_long(seq) for seq in new):
            assert sum(map(is_long, self._prefilling())) == 1, "one long prompt at a time"
        if config.long_prefill_token_threshold == 0:
            assert new == queue[: len(new)], "the queue is served in order"
        rows = {row.request_id: row for row in plan.seqs}
        if any(seq.request_id in rows and not rows[seq.request_id].samples for seq in new):
            assert len(self._part_prefilled(plan)) <= config.max_num_partial_prefills

    def _prefilling(self) -> list[Sequence]:
        return [seq for seq in self.scheduler.ledger.running.values() if seq.phase is Phase.PREFILL]

    def _part_prefilled(self, plan: StepPlan) -> list[Sequence]:
        """Sequences whose prefill will have begun and not ended after the step."""
        rows = {row.request_id: row for row in plan.seqs}
        return [
            seq
            for seq in self.scheduler.ledger.running.values()
            if seq.phase is Phase.PREFILL
            and (not rows[seq.request_id].samples if seq.request_id in rows else seq.computed > 0)
        ]

    def _check_evictions(self, plan: StepPlan) -> None:
        def newness(request_id: str) -> tuple[float, ...]:
            request = self.requests[request_id]
            number = int(request_id[1:])
            first = (request.priority,) if self.scheduler.config.scheduling_policy == "priority" else ()
            return (*first, request.arrival, number)

        survivors = [newness(row.request_id) for row in plan.seqs if not row.is_prefill]
        for victim in plan.preempted:
            event("evicted")
            assert all(newness(victim) > survivor for survivor in survivors), "the newest goes first"
            assert victim in {seq.request_id for seq in self.scheduler.ledger.waiting}

    def _check_work_conserving(self, plan: StepPlan) -> None:
        """Nobody waits who could have been admitted."""
        config, ledger = self.scheduler.config, self.scheduler.ledger
        if config.batching == "static" or plan.preempted or len(ledger.running) >= config.max_num_seqs:
            return
        part = self._part_prefilled(plan)
        if part and not config.preemptible:
            return
        rows = [row for row in plan.seqs if row.is_prefill]
        is_long = ledger.waiting.is_long
        busy = any(is_long(ledger.live[row.request_id]) for row in rows) or any(is_long(seq) for seq in part)
        head = next((seq for seq in ledger.waiting if not (busy and is_long(seq))), None)
        if head is None:
            return
        blocks_for = ledger.pool.blocks_for
        owed = sum(blocks_for(len(seq.tokens)) - len(seq.blocks) for seq in self._prefilling())
        if blocks_for(len(head.tokens)) + len(ledger.running) > ledger.pool.free - owed:
            return
        budget, decodes = config.max_num_batched_tokens, plan.num_decode_tokens
        share = budget - (min(budget - 1, floor(budget * config.decode_ratio)) if decodes else 0)
        room = min(budget - decodes, share) - plan.num_prefill_tokens
        if not config.enable_chunked_prefill:
            assert rows, "a prompt that must go whole goes alone if need be"
            assert len(head.tokens) > room
            return
        size = min(len(head.tokens), config.chunk, room)
        would_be_partial = size < len(head.tokens) and len(part) >= config.max_num_partial_prefills
        assert size <= 0 or would_be_partial, f"{head!r} could have been admitted in {plan}"

    # At the end

    def drain(self) -> None:
        """All finish, in bounded steps; outputs are those of the model alone; a replay gives the same bytes."""
        if self.plan_in_flight is not None:
            self.commit()
        bound = sum((len(r.prompt_token_ids) + r.max_tokens) * (r.max_tokens + 1) for r in self.requests.values())
        for _ in range(bound + 1):
            if self.plan() is None:
                break
            self.commit()
            invariants.check(self.scheduler)
        assert not self.scheduler.has_work
        assert set(self.ended) == set(self.requests)
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
        assert stats.steps == len(self.plans)
        self._check_outputs()
        self._check_replay()

    def _check_outputs(self) -> None:
        for request_id, request in self.requests.items():
            expected, output = unscheduled(request), self.outputs[request_id]
            if request_id in self.cut_short or self.ended[request_id] is FinishReason.ERROR:
                assert output == expected[: len(output)]
                continue
            assert output == expected
            stopped = expected[-1] in request.stop_token_ids
            assert self.ended[request_id] is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    def _check_replay(self) -> None:
        fresh = Scheduler(self.initial, num_blocks=self.scheduler.ledger.pool.num_blocks, max_model_len=MODEL_LEN)
        plans = [answer for name, args in self.log if (answer := getattr(fresh, name)(*args)) and name == "plan"]
        assert [pickle.dumps(plan) for plan in plans] == [pickle.dumps(plan) for plan in self.plans]


@pytest.fixture(scope="session")
def harness() -> type[Harness]:
    return Harness
