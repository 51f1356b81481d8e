"""The scheduler under random load, aborts and reconfigurations. What is checked is in `core_harness.Harness`."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, note, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import FinishReason

pytestmark = pytest.mark.timeout(1200)  # a failing example takes minutes to shrink, and is worth them

VOCABULARY = 50
EXAMPLES = max(40, settings.default.max_examples // 2)  # each is some forty calls, all checked
PARTS = (Part.explicit, Part.reuse, Part.generate, Part.shrink)


def hot_knobs() -> dict[str, st.SearchStrategy[object]]:
    small = st.integers(1, 12)
    return {
        "max_num_seqs": small,
        "max_num_batched_tokens": st.integers(1, 32),
        "enable_chunked_prefill": st.booleans(),
        "prefill_chunk_size": st.none() | small,
        "decode_ratio": st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.999]),
        "preemptible": st.booleans(),
        "max_num_partial_prefills": st.integers(1, 4),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 3, 8]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "priority_ageing_seconds": st.sampled_from([0.0, 0.5, 60.0]),
        "max_queue_len": st.sampled_from([0, 2, 1024]),
        "max_queue_tokens": st.none() | st.integers(1, 60),
    }


@st.composite
def start_knobs(draw: st.DrawFn) -> dict[str, object]:
    knobs = draw(
        st.fixed_dictionaries({name: values for name, values in hot_knobs().items() if name != "max_queue_len"})
    )
    seqs, chunk = knobs["max_num_seqs"], knobs["prefill_chunk_size"]
    floor_of_budget = max(seqs, chunk or 1)  # type: ignore[type-var]
    knobs["max_num_batched_tokens"] = draw(st.integers(floor_of_budget, 32) | st.just(32))  # type: ignore[arg-type]
    knobs["block_size"] = draw(st.integers(1, 5))
    knobs["batching"] = draw(st.sampled_from(["continuous", "continuous", "continuous", "static"]))
    knobs["enable_prefix_caching"] = draw(st.sampled_from([True, True, True, False]))
    return knobs


pools = st.integers(3, 14) | st.integers(15, 80)
BASES = (tuple(range(14)), tuple(range(7)) + (3,) * 7)  # prompts begin alike, as those of one chat do
prompts = st.builds(
    lambda base, cut, tail: (base[:cut] + tail)[:14],
    st.sampled_from(BASES),
    st.integers(0, 14),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=14).map(tuple),
)
output_lengths = st.integers(1, 10)
hash_masks = st.sampled_from([None, None, 0, 3])  # with few bits left, all hashes collide
expectations = st.sampled_from([0, 40])  # with short outputs behind it, admission lets in more than fit in the end
stops = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=6)
changes = st.fixed_dictionaries({}, optional=hot_knobs())


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of calls, also between a plan and its commit."""

    make: Any  # the class Harness
    harness: Any

    @initialize(knobs=start_knobs(), num_blocks=pools, expected=expectations, mask=hash_masks)
    def start(self, knobs: dict[str, object], num_blocks: int, expected: int, mask: int | None) -> None:
        self.harness = self.make(knobs, num_blocks, expected=expected, hash_mask=mask)

    @rule(
        prompt=prompts, max_tokens=output_lengths, stop=stops, priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "a"]), reads_cache=st.sampled_from([True, True, True, False]),
        forks=st.sampled_from([0, 0, 1, 3]),
    )  # fmt: skip
    def submit(
        self, *, prompt: tuple[int, ...], max_tokens: int, stop: frozenset[int], priority: int, salt: str,
        reads_cache: bool, forks: int,
    ) -> None:  # fmt: skip
        request_id = self.harness.submit(prompt, max_tokens, stop, priority, salt=salt, reads_cache=reads_cache)
        if request_id is not None:
            self.harness.submit_forks(request_id, forks)

    @precondition(lambda self: self.harness.requests)
    @rule(data=st.data())
    def fork_late(self, data: st.DataObject) -> None:
        self.harness.submit_forks(data.draw(st.sampled_from(sorted(self.harness.requests))), 1)

    @precondition(lambda self: self.harness.requests)
    @rule(data=st.data(), reason=st.sampled_from([None, FinishReason.STOP]))
    def end(self, data: st.DataObject, reason: FinishReason | None) -> None:
        self.harness.end(data.draw(st.sampled_from(sorted(self.harness.requests))), reason=reason)

    @rule(knobs=changes)
    def reconfigure(self, knobs: dict[str, object]) -> None:
        self.harness.reconfigure(knobs)

    @precondition(lambda self: self.harness.plan_in_flight is None)
    @rule()
    def plan(self) -> None:
        self.harness.plan()

    @precondition(lambda self: self.harness.plan_in_flight is not None)
    @rule(fail=st.sets(st.integers(0, 11), max_size=1) | st.just(set()))
    def commit(self, fail: set[int]) -> None:
        plan = self.harness.plan_in_flight
        assert plan is not None
        live = [row.request_id for row in plan.seqs if row.request_id not in self.harness.ended]
        self.harness.commit(frozenset(live[index] for index in fail if index < len(live)))

    @precondition(lambda self: self.harness.plan_in_flight is None)
    @rule(steps=st.integers(1, 6))
    def several_steps(self, steps: int) -> None:
        for _ in range(steps):
            if self.harness.plan() is None:
                return
            self.harness.commit()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "harness"):
            invariants.check(self.harness.scheduler)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


def test_any_order_of_calls(harness: Any) -> None:
    SchedulerMachine.make = harness
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            phases=PARTS,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


Arrival = tuple[int, tuple[int, ...], int, int, int]  # step, prompt, output tokens, priority, forks


def random_prompt(draw: random.Random, longest: int) -> tuple[int, ...]:
    tail = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, longest)))
    return (draw.choice(BASES)[: draw.randint(0, longest)] + tail)[:longest]


@st.composite
def loads(draw: st.DrawFn) -> tuple[dict[str, object], int, list[Arrival]]:
    """Knobs, blocks and arrivals: often a burst, often with too little memory for all that may run."""
    knobs = draw(start_knobs())
    random = draw(st.randoms(use_true_random=False))
    longest = draw(st.sampled_from([2, 6, 14]))
    last_step = draw(st.sampled_from([0, 3, 12]))
    requests = [
        (
            random.randint(0, last_step),
            random_prompt(random, longest),
            random.randint(1, 10),
            random.randint(0, 2),
            random.choice([0, 0, 0, 1, 2]),
        )
        for _ in range(draw(st.integers(1, 24)))
    ]
    needs = [-(-(len(prompt) + 10 - 1) // int(str(knobs["block_size"]))) for _, prompt, _, _, _ in requests]
    usable = draw(st.sampled_from([max(needs), max(needs) + 2, 2 * max(needs), sum(needs)]))
    return knobs, usable + 1, requests


@settings(max_examples=2 * EXAMPLES, deadline=None, phases=PARTS, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads(), turns=st.dictionaries(st.integers(0, 30), changes, max_size=3), expected=expectations)
def test_a_whole_run_gives_what_the_model_gives_alone(
    harness: Any, load: tuple[dict[str, object], int, list[Arrival]], turns: dict[int, dict[str, object]], expected: int
) -> None:
    knobs, num_blocks, requests = load
    driver = harness(knobs, num_blocks, expected=expected)
    for step in range(31):
        for _, prompt, max_tokens, priority, forks in (request for request in requests if request[0] == step):
            request_id = driver.submit(prompt, max_tokens, frozenset(), priority)
            if request_id is not None:
                driver.submit_forks(request_id, forks)
        if step in turns:
            driver.reconfigure(turns[step])
        if driver.plan() is not None:
            driver.commit()
        invariants.check(driver.scheduler)
    driver.drain()
    note(repr(driver.scheduler))
    event(f"evictions: {min(3, driver.scheduler.stats().preemptions)}")


@settings(max_examples=2 * EXAMPLES, deadline=None, phases=PARTS)
@example(seed=47)  # without its shield a sequence is evicted twice at the same length
@example(seed=16)  # without the rule, a request is admitted in the step that evicted another
@given(seed=st.integers(0, 2**32))
def test_short_memory_is_shared_by_eviction_and_everybody_finishes(harness: Any, seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([1, 1, 2])
    chunk = draw.choice([1, 2, 3, None])
    lengths = [(draw.randint(0, 8), draw.randint(1, 8), draw.randint(1, 10)) for _ in range(draw.randint(3, 8))]
    knobs = {
        "max_num_seqs": draw.choice([3, 4, 8]),
        "max_num_batched_tokens": 32,
        "prefill_chunk_size": chunk,
        "block_size": size,
        "scheduling_policy": draw.choice(["fcfs", "priority"]),
        "long_prefill_token_threshold": draw.choice([0, 0, 3]),
        "preemptible": draw.choice([True, True, False]),
    }
    largest = max(-(-(prompt + output - 1) // size) for _, prompt, output in lengths)
    driver = harness(knobs, 1 + largest + draw.choice([0, 0, 1, 2, 4, 8]), expected=40)
    for step in range(9):
        for _, prompt, output in (request for request in lengths if request[0] == step):
            tokens = tuple(draw.randrange(VOCABULARY) for _ in range(prompt))
            driver.submit(tokens, output, frozenset(), draw.randint(0, 2))
        if driver.plan() is not None:
            driver.commit()
    driver.drain()
    event(f"evictions: {min(3, driver.scheduler.stats().preemptions)}")
