"""Whatever the load, the memory and the knobs: every request is accounted for, and time only passes in steps."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import StepPlan
from headrace_core.sim.simulator import ClosedLoop, OpenLoop, SimRun, SimulatedEngine, Simulator
from headrace_core.workload.arrivals import ArrivalProcess, Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import PlannedRequest, Prefix, RequestMix, plan_window

KNOBS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(6, 40),
        "decode_ratio": st.sampled_from([0.0, 0.25, 0.5]),
        "preemptible": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "batching": st.sampled_from(["continuous", "static"]),
        "max_queue_len": st.sampled_from([3, 1024]),
        "block_size": st.sampled_from([4, 16]),
    }
)
PLANS = st.builds(
    lambda seed, prompt, output, process, shared: plan_window(
        Arrivals(process=process, rate=4.0),
        RequestMix(
            prompt=Length.parse(f"uniform:1:{prompt}"), output=Length.parse(f"uniform:1:{output}"),
            prefix=Prefix(tokens=shared, share=0.5, groups=2),
        ),
        requests=20, duration=5.0, seed=seed,
    ),
    st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.sampled_from(ArrivalProcess), st.integers(0, 9),
)  # fmt: skip


def seconds(plan: StepPlan) -> float:
    return 0.02 + 0.003 * plan.num_tokens


def simulator(knobs: dict[str, Any], plan: list[PlannedRequest], *, blocks: int, closed: bool) -> Simulator:
    engine = SimulatedEngine(
        config=resolve(knobs), step_time=seconds, num_blocks=blocks, max_model_len=100, jitter=0.3, seed=1, check=True
    )
    return Simulator(engine, ClosedLoop(plan, 4) if closed else OpenLoop(plan))


def times_are_sound(run: SimRun) -> None:
    for before, after in zip(run.steps, run.steps[1:], strict=False):
        assert before.at + before.seconds <= after.at + 1e-9
    for outcome in run.outcomes:
        if outcome.refused is None:
            assert outcome.end is not None
            assert len(outcome.tokens) == outcome.planned.output_tokens
            assert outcome.arrival < outcome.tokens[0] <= outcome.tokens[-1] == outcome.end
            assert list(outcome.tokens) == sorted(outcome.tokens)


@given(KNOBS, PLANS, st.integers(8, 60), st.booleans())
def test_every_request_ends_with_all_its_tokens_or_is_refused(knobs, plan, blocks, closed) -> None:
    run = simulator(knobs, plan, blocks=blocks, closed=closed).run(until=10_000.0)
    assert run.live == ()
    times_are_sound(run)
    assert sum(step.sampled for step in run.steps) == sum(len(outcome.tokens) for outcome in run.outcomes)
    assert sum(step.preempted for step in run.steps) == sum(outcome.preemptions for outcome in run.outcomes)
    if not closed or len(run.outcomes) == len(plan):
        assert sorted(map(repr, plan)) == sorted(repr(outcome.planned) for outcome in run.outcomes)


@given(KNOBS, PLANS, st.booleans(), st.integers(0, 10**6))
def test_a_run_in_pieces_is_the_run_in_one(knobs, plan, closed, seed) -> None:
    whole = simulator(knobs, plan, blocks=40, closed=closed).run(until=10_000.0)
    cut, rng, steps, outcomes = simulator(knobs, plan, blocks=40, closed=closed), random.Random(seed), [], []
    while True:
        limit = rng.choice([{"steps": rng.randint(1, 9)}, {"requests": 1}, {"until": cut.now + rng.uniform(0.01, 2)}])
        part = cut.run(**limit)
        steps += part.steps
        outcomes += part.outcomes
        if cut.now > whole.steps[-1].at if whole.steps else not part.steps:
            break
    assert tuple(steps) == whole.steps
    assert tuple(outcomes) == whole.outcomes
