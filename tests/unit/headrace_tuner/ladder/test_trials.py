from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.ladder.trials import best_of, canonical

BASE, GOOD = {"prefill_chunk_size": 1024}, {"prefill_chunk_size": 64}


def test_a_lucky_repeat_is_pooled(make) -> None:
    trials = [make.trial(0, 37, **BASE), make.trial(1, 40, **GOOD), make.trial(2, 30, **GOOD)]
    assert best_of(make.goal(), trials).candidate.knobs.values() == BASE


def test_a_feasible_config_goes_before_a_faster_one(make) -> None:
    goal = make.goal(objective=Objective.THROUGHPUT)
    fast = make.trial(1, 20, **GOOD).model_copy(update={"score": 1e6})
    assert best_of(goal, [make.trial(0, 38, **BASE), fast]).candidate.knobs.values() == BASE


def test_equal_configs_have_one_key() -> None:
    assert canonical({"a": 64, "b": 0.5}) == canonical({"b": 0.50000000000001, "a": 64.0})
    assert canonical({"a": True}) != canonical({"a": 1})
