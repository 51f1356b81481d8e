"""Known failures of other engines, each as a test. The model's KV cache is real: wrong KV is wrong output."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
from core_fake_model import FakeModel, unscheduled

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    Finished,
    FinishReason,
    Rejected,
    RejectReason,
    Request,
    StepPlan,
    StepResult,
    Token,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace.history import History

SIZE = 4


class Engine:
    """A scheduler and a model, without checks of single plans: for runs longer than the harness is made for."""

    def __init__(self, *, num_blocks: int = 200, max_model_len: int = 100_000, **knobs: object) -> None:
        defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 64, "block_size": SIZE}
        self.history = History()
        self.scheduler = Scheduler(
            resolve(defaults | knobs), num_blocks=num_blocks, max_model_len=max_model_len, observer=self.history
        )
        self.requests: dict[str, Request] = {}
        self.seeds: dict[str, int] = {}
        self.model = FakeModel(SIZE, self.requests, self.seeds)
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.plans: list[StepPlan] = []
        self.now = 0.0

    def submit(self, name: str, prompt: Iterable[int], output: int = 8, **fields: Any) -> None:
        self.now += 1
        request = Request(
            request_id=name, prompt_token_ids=tuple(prompt), max_tokens=output, arrival=self.now, **fields
        )  # fmt: skip
        self.requests[name], self.seeds[name], self.outputs[name] = request, 0, []
        assert not isinstance(self.scheduler.submit(request, self.now), Rejected)

    def plan(self) -> StepPlan | None:
        self.now += 1
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
        return plan

    def commit(self, plan: StepPlan) -> None:
        self.now += 1
        for outcome in self.scheduler.commit(plan, StepResult(tokens=self.model.run(plan)), self.now):
            match outcome:
                case Token():
                    self.outputs[outcome.request_id].append(outcome.token_id)
                case Finished():
                    assert outcome.request_id not in self.ended
                    self.ended[outcome.request_id] = outcome.reason

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.commit(plan)
        return plan

    def drain(self, *, at_most: int = 100_000) -> None:
        for _ in range(at_most):
            if self.step() is None:
                break
        invariants.check(self.scheduler)
        assert not self.scheduler.has_work

    def alone(self, name: str) -> list[int]:
        return unscheduled(self.requests[name], 0)


def test_a_warm_cache_changes_no_output() -> None:
    """The same prompt gave another completion once the cache was warm, alone or in a batch ended by stop strings."""
    prompt = [(7 * n) % 50 for n in range(23)]
    for batch in (1, 5):
        engine = Engine()
        for turn in range(3):
            names = [f"{turn}.{index}" for index in range(batch)]
            for name in names:
                engine.submit(name, prompt)
            for _ in range(4):
                engine.step()
            if batch > 1:
                for name in names[1:]:
                    engine.scheduler.finish(name, FinishReason.STOP, engine.now)  # as a stop string does
            engine.drain()
            assert engine.outputs[names[0]] == engine.alone(names[0])
        assert engine.scheduler.stats().cache_hits >= 2 * batch * 20


def test_any_shared_beginning_gives_the_output_of_a_cold_run() -> None:
    """Output was corrupt only where a prompt shared k blocks with an earlier one."""
    base = [(11 * n) % 50 for n in range(6 * SIZE)]
    engine = Engine()
    engine.submit("base", base)
    engine.drain()
    for shared in range(len(base) + 1):
        name = f"r{shared}"
        engine.submit(name, [*base[:shared], 49, 48])
        engine.drain()
        assert engine.outputs[name] == engine.alone(name)


@pytest.mark.parametrize("chunked", [True, False])
def test_every_hit_length_meets_every_chunk_size(chunked: bool) -> None:
    """A hit that ended inside a chunk, or with chunking off, read or wrote the wrong positions."""
    around = sorted({block * SIZE + off for block in range(4) for off in (-1, 0, 1)} - {-1})
    base = [(3 * n) % 50 for n in range(20)]
    for hit, chunk in itertools.product(around, [size for size in around if size] if chunked else [None]):
        engine = Engine(enable_chunked_prefill=chunked, prefill_chunk_size=chunk)
        engine.submit("first", [*base[:hit], 45])
        engine.drain()
        engine.submit("second", [*base[:hit], *range(30, 39)])
        engine.drain()
        assert engine.outputs["second"] == engine.alone("second"), (hit, chunk)
        assert engine.scheduler.stats().cache_hits == hit // SIZE * SIZE


def test_a_thousand_finished_requests_leave_nothing_used() -> None:
    """Freeing in the wrong order left finished requests' blocks counted as used, until all work was refused."""
    engine = Engine(num_blocks=60)
    draw = random.Random(7)
    for index in range(1000):
        begin = draw.choice(([1] * 9, [2] * 13, []))
        engine.submit(
            f"r{index}", [*begin, *(draw.randrange(50) for _ in range(draw.randint(1, 9)))], draw.randint(1, 9)
        )
        if index % 10 == 9:
            engine.drain()
            stats = engine.scheduler.stats()
            assert (stats.kv_usage, stats.blocks_free) == (0.0, stats.blocks_total)
    assert len(engine.ended) == 1000
    assert engine.scheduler.stats().blocks_cached > 50, "used and cached are two things"


def test_an_abort_at_any_moment_ends_the_request_once_and_frees_it_once() -> None:
    """An abort that met a completion was lost, and the request decoded on; or it freed twice, after its chunk ran."""
    for moment, forks in itertools.product(range(40), (0, 2)):
        engine = Engine(prefill_chunk_size=5)
        engine.submit("other", range(7), 12)
        engine.submit("a", range(13), 6)
        for index in range(forks):
            engine.submit(f"f{index}", range(13), 6, fork_of="a")
        aborted = False
        for tick in itertools.count():
            if tick == moment:
                aborted = engine.scheduler.abort("a", engine.now) is not None
                invariants.check(engine.scheduler)
                assert engine.scheduler.abort("a", engine.now) is None
            if tick % 2 == 0 and (plan := engine.plan()) is None:
                break
            if tick % 2 == 1:
                engine.commit(plan)
            invariants.check(engine.scheduler)
        assert aborted != ("a" in engine.ended)
        for name in engine.requests:
            if name != "a" or not aborted:
                assert engine.outputs[name] == engine.alone(name)
        assert engine.scheduler.stats().kv_usage == 0.0


def test_blocks_reserved_for_a_step_that_never_counts_are_free_again() -> None:
    """An abort while blocks were reserved, and not yet in use, leaked them."""
    engine = Engine()
    free = engine.scheduler.state.pool.free
    engine.submit("a", range(30))
    plan = engine.plan()
    assert plan is not None
    assert engine.scheduler.state.pool.free == free - 8
    engine.scheduler.abort("a", engine.now)
    assert engine.scheduler.state.pool.free == free
    engine.commit(plan)
    assert engine.scheduler.state.pool.free == free
    invariants.check(engine.scheduler)


def test_after_aborts_in_every_state_a_full_batch_can_run() -> None:
    """A counter of running requests leaked with each abort, up to the limit."""
    engine = Engine(max_num_seqs=4, prefill_chunk_size=8, num_blocks=30)
    for turn in range(20):
        for index in range(7):
            engine.submit(f"{turn}.{index}", range(index, index + 12), 5, fork_of=None)
        engine.submit(f"{turn}.fork", range(6, 18), 5, fork_of=f"{turn}.6")
        for _ in range(turn % 6):
            engine.step()
        plan = engine.plan() if turn % 2 else None
        for name in list(engine.scheduler.state.live):
            engine.scheduler.abort(name, engine.now)
        if plan is not None:
            engine.commit(plan)
        invariants.check(engine.scheduler)
    for index in range(4):
        engine.submit(f"last{index}", [index] * 9)
    engine.step()
    assert engine.scheduler.stats().running == 4


def test_an_abort_of_a_queued_request_leaves_the_running_one_alone() -> None:
    """Cancelling a queued client killed somebody else's decode."""
    engine = Engine(max_num_seqs=1)
    engine.submit("running", range(9), 10)
    engine.step()
    engine.submit("queued", range(9), 10)
    engine.scheduler.abort("queued", engine.now)
    engine.drain()
    assert engine.outputs["running"] == engine.alone("running")
    assert engine.outputs["queued"] == []


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("naive", [True, False])
def test_two_requests_that_need_more_than_half_the_cache_each_do_not_evict_each_other_in_turns(
    cached: bool, naive: bool
) -> None:  # fmt: skip
    """Two requests that each need 60 % of the cache preempted each other forever."""
    engine = Engine(num_blocks=21, enable_prefix_caching=cached)
    if naive:
        engine.scheduler.expect([1] * 20, 0.0)
    for name in "ab":
        engine.submit(name, [ord(name) % 50] * 8, 40)
    engine.drain(at_most=200)
    preempted = [name for plan in engine.plans for name in plan.preempted]
    assert all(preempted.count(name) <= 1 for name in "ab")
    assert len(preempted) == naive, "who knows how long outputs are admits the second when it fits"
    assert all(engine.outputs[name] == engine.alone(name) for name in "ab")


def test_under_a_full_cache_some_request_advances_in_every_step() -> None:
    """Preemptions followed each other without a token in between, until nothing moved any more."""
    engine = Engine(num_blocks=14, preemptible=True, prefill_chunk_size=3)
    engine.scheduler.expect([1] * 20, 0.0)
    for index in range(12):
        engine.submit(f"r{index}", [index] * 6, 30)
    outputs = 0
    idle = 0
    while (plan := engine.step()) is not None:
        now = sum(map(len, engine.outputs.values()))
        idle = 0 if now > outputs or plan.num_prefill_tokens else idle + 1
        outputs = now
        assert idle == 0
    assert engine.scheduler.stats().preemptions
    assert all(engine.outputs[name] == engine.alone(name) for name in engine.requests)


def test_one_long_prompt_delays_short_ones_and_decodes_by_no_more_than_its_knobs_say() -> None:
    """One long prompt froze short ones, and running decodes, for tens of seconds."""
    engine = Engine(
        num_blocks=20_000, max_num_batched_tokens=256, prefill_chunk_size=128, long_prefill_token_threshold=1000,
        decode_ratio=0.25,
    )  # fmt: skip
    engine.submit("chat", range(10), 500)
    engine.step()
    engine.submit("long", (n % 50 for n in range(60_000)), 2)
    for index in range(20):
        engine.submit(f"short{index}", [index] * 40, 5)
    while len(engine.ended) < 20:
        plan = engine.step()
        assert plan is not None
        assert plan.num_prefill_tokens <= 192, "each step is bounded, so each gap between two tokens is"
        assert "chat" in {row.request_id for row in plan.seqs}, "and decodes advance in every step"
    first = {name: engine.history.explain(name, engine.now) for name in engine.ended}
    steps = [told.chunks[0].step for told in first.values() if told is not None]
    assert max(steps) <= 2 + 20 * 40 // (192 - 128) + 1, "the long prompt takes one chunk of each step"
    engine.scheduler.abort("chat", engine.now)
    engine.scheduler.abort("long", engine.now)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_steady_stream_of_prefills_starves_no_decode(share: float) -> None:
    """Under prefill arrivals near capacity, running requests got no token for many steps."""
    engine = Engine(num_blocks=2000, max_num_seqs=16, decode_ratio=share)
    for index in range(200):
        engine.submit(f"r{index}", [index % 50] * 58, 6)
        running = [seq.request_id for seq in engine.scheduler.state.running.values() if seq.phase == "decode"]
        plan = engine.step()
        assert plan is not None
        assert set(running) <= {row.request_id for row in plan.seqs} | set(plan.preempted)


def test_a_request_id_in_use_is_refused_and_the_first_is_not_touched() -> None:
    """Two calls with one id were mixed up, or lost."""
    engine = Engine()
    engine.submit("same", range(9), 10)
    engine.step()
    again = Request(request_id="same", prompt_token_ids=(1, 2), max_tokens=3, arrival=engine.now)
    answer = engine.scheduler.submit(again, engine.now)
    assert isinstance(answer, Rejected)
    assert answer.reason is RejectReason.DUPLICATE_ID
    engine.drain()
    assert engine.outputs["same"] == engine.alone("same")
    engine.submit("same", range(5), 3)
    engine.ended.clear()
    engine.drain()
    assert engine.outputs["same"] == engine.alone("same"), "when it has ended, the id is free"
