"""The simulator: the engine's own plans, on a clock that only steps move."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import FinishReason, RejectReason, StepPlan
from headrace_core.sim.simulator import (
    ClosedLoop,
    OpenLoop,
    SimRun,
    SimulatedEngine,
    SimulationError,
    Simulator,
)
from headrace_core.workload.arrivals import Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import PlannedRequest, Prefix, RequestKind, RequestMix, endless, plan_window

MIX = RequestMix(prompt=Length.parse("uniform:8:40"), output=Length.parse("uniform:2:12"))


def one_second(plan: StepPlan) -> float:
    del plan
    return 1.0


def by_tokens(plan: StepPlan) -> float:
    return 0.010 + 0.001 * plan.num_tokens


def engine(*, num_blocks: int = 200, step_time: Any = one_second, **more: Any) -> SimulatedEngine:
    own = {name: more.pop(name) for name in ("speed", "jitter", "seed") if name in more}
    config = resolve({"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 4} | more)
    return SimulatedEngine(
        config=config, step_time=step_time, num_blocks=num_blocks, max_model_len=512, check=True, **own
    )  # fmt: skip


def asked(at: float, prompt: int = 8, output: int = 3, **more: Any) -> PlannedRequest:
    return PlannedRequest(at=at, prompt_tokens=prompt, output_tokens=output, kind=RequestKind.SHORT, **more)


def opened(plan: Sequence[PlannedRequest], **more: Any) -> SimRun:
    return Simulator(engine(**more), OpenLoop(plan)).run()


def test_a_request_alone_gets_a_token_a_step_from_its_arrival_on() -> None:
    (outcome,) = opened([asked(5.0)]).outcomes
    assert outcome.tokens == (6.0, 7.0, 8.0)
    assert (outcome.arrival, outcome.end, outcome.reason) == (5.0, 8.0, FinishReason.LENGTH)
    assert (outcome.ttft, outcome.gaps, outcome.e2e) == (1.0, [1.0, 1.0], 3.0)


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    first, second = opened([asked(0.0), asked(0.5)]).outcomes
    assert first.tokens == (1.0, 2.0, 3.0)
    assert second.tokens == (2.0, 3.0, 4.0)
    assert second.ttft == 1.5


def test_steps_say_what_they_held() -> None:
    run = opened([asked(0.0, prompt=40), asked(0.0)], prefill_chunk_size=16)
    first = run.steps[0]
    assert (first.at, first.seconds, first.generation) == (0.0, 1.0, 1)
    assert (first.prefill_tokens, first.decode_tokens, first.sampled) == (24, 0, 1)
    assert sum(step.sampled for step in run.steps) == run.tokens == 6
    assert [step.at for step in run.steps] == [float(at) for at in range(len(run.steps))]


def test_the_same_arguments_give_the_same_run_and_another_seed_another() -> None:
    plan = plan_window(Arrivals(rate=20), MIX, requests=60, duration=3.0, seed=3)
    runs = [opened(plan, step_time=by_tokens, jitter=0.2, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0].completed == 60


def test_a_closed_loop_keeps_as_many_at_work_as_it_should() -> None:
    run = Simulator(engine(), ClosedLoop(endless(MIX, 5), 3)).run(requests=20)
    assert 20 <= run.completed <= 22
    assert len(run.live) == 3
    at_once = [
        sum(one.arrival <= step.at < (one.end or run.end) for one in (*run.outcomes, *run.live)) for step in run.steps
    ]
    assert set(at_once) == {3}


def test_a_closed_loop_ends_with_its_source() -> None:
    run = Simulator(engine(), ClosedLoop([asked(0.0)] * 7, 3)).run()
    assert (run.completed, run.live) == (7, ())


def test_a_run_stops_at_each_limit_and_goes_on_where_it_stopped() -> None:
    simulator = Simulator(engine(), ClosedLoop(endless(MIX, 5), 3))
    first = simulator.run(steps=10)
    assert (len(first.steps), first.seconds) == (10, 10.0)
    second = simulator.run(until=15.0)
    assert (second.begin, second.end, len(second.steps)) == (10.0, 15.0, 5)
    third = simulator.run(requests=4)
    assert third.begin == 15.0
    assert third.completed >= 4
    whole = Simulator(engine(), ClosedLoop(endless(MIX, 5), 3)).run(until=third.end)
    assert whole.outcomes == first.outcomes + second.outcomes + third.outcomes


def test_time_passes_without_work_up_to_the_limit_and_no_further() -> None:
    simulator = Simulator(engine(), OpenLoop([asked(100.0)]))
    idle = simulator.run(until=40.0)
    assert (idle.end, idle.steps, idle.outcomes) == (40.0, (), ())
    assert simulator.run().outcomes[0].tokens[0] == 101.0
    assert simulator.run(until=200.0).end == 103.0, "nothing is left to wait for"


def test_a_change_is_in_force_from_the_first_step_at_its_time() -> None:
    simulator = Simulator(
        engine(prefill_chunk_size=4), OpenLoop([asked(0.0, prompt=40)]), changes=[(2.5, {"prefill_chunk_size": 16})]
    )
    steps = simulator.run().steps
    assert [step.prefill_tokens for step in steps[:5]] == [4, 4, 4, 16, 12]
    assert [step.generation for step in steps[:5]] == [1, 1, 1, 2, 2]


def test_knobs_change_between_two_runs() -> None:
    simulator = Simulator(engine(), ClosedLoop(endless(MIX, 5), 4))
    simulator.run(steps=5)
    simulator.reconfigure({"max_num_seqs": 1})
    assert max(step.decode_tokens for step in simulator.run(steps=40).steps[20:]) == 1


def test_a_change_that_is_refused_says_which_knob() -> None:
    with pytest.raises(SimulationError, match="max_num_seqs"):
        Simulator(engine(), OpenLoop([asked(0.0)]), changes=[(0.0, {"max_num_seqs": 0})]).run()


def test_preemptions_are_counted_where_memory_is_short() -> None:
    plan = [asked(0.0, prompt=8, output=24) for _ in range(4)]
    # Admission believes in short outputs once short ones have ended.
    short = [asked(0.0, prompt=4, output=1) for _ in range(40)]
    run = opened([*short, *(replace(item, at=60.0) for item in plan)], num_blocks=16)
    assert sum(outcome.preemptions for outcome in run.outcomes) == sum(step.preempted for step in run.steps) > 0
    assert run.completed == 44


def test_a_refused_request_is_reported_and_delays_no_other() -> None:
    run = opened([asked(0.0, prompt=600), asked(0.0)])
    assert [outcome.refused for outcome in run.outcomes] == [RejectReason.TOO_LONG, None]
    full = opened([asked(0.0) for _ in range(9)], max_queue_len=2)
    assert sum(outcome.refused is RejectReason.QUEUE_FULL for outcome in full.outcomes) > 0
    assert full.completed + sum(outcome.refused is not None for outcome in full.outcomes) == 9


def test_a_closed_loop_of_refused_requests_ends() -> None:
    run = Simulator(engine(), ClosedLoop((asked(0.0, prompt=600) for _ in count()), 3)).run()
    assert (len(run.outcomes), run.steps) == (3, ())


def test_a_machine_that_drifts_takes_longer_for_the_same_steps() -> None:
    run = opened([asked(0.0, output=6)], speed=lambda now: 1.0 if now < 2 else 0.5)
    assert [step.seconds for step in run.steps] == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]


def test_only_a_shared_prefix_is_found_in_the_cache() -> None:
    shared = replace(MIX, prefix=Prefix(tokens=24, groups=1))
    plans = [plan_window(Arrivals(rate=0.05), mix, requests=6, duration=120.0, seed=1) for mix in (MIX, shared)]
    runs = [opened(plan) for plan in plans]
    computed = [sum(step.prefill_tokens for step in run.steps) for run in runs]
    asked_for = [sum(item.prompt_tokens for item in plan) for plan in plans]
    assert computed[0] == asked_for[0]
    assert computed[1] == asked_for[1] - 5 * 24
