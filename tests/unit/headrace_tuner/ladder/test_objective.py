import math

import pytest

from headrace_api.v1alpha1.tuningrun import Objective


def test_goodput_counts_what_was_planned(make) -> None:
    reading = make.reading(36, planned=40, seconds=20)
    assert reading.counts.goodput == pytest.approx(1.8)
    assert reading.counts.attainment == pytest.approx(0.9)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_margin_never_outranks_one_request(make, objective) -> None:
    goal = make.goal(objective=objective)
    worst, best = (make.reading(30, p95=p95) for p95 in (1e9, 1e-9))
    assert goal.score(worst) < goal.score(best)
    one_more = make.reading(31, p95=1e9)
    if objective is Objective.GOODPUT:
        assert goal.score(best) < goal.score(one_more)
    else:
        one_answer = worst.throughput / worst.counts.requests
        assert goal.score(best) - goal.score(worst) < one_answer


def test_the_margin_is_half_at_the_threshold_and_nothing_without_data(make) -> None:
    goal = make.goal(thresholds={"itl": 0.1})
    assert goal.margin(make.reading(1, p95=0.1)) == pytest.approx(0.5)
    assert goal.margin(make.reading(1, p95=math.nan)) == 0.0
    assert make.goal(thresholds={}).margin(make.reading(1)) == 0.5


def test_constraints_are_signed_slack(make) -> None:
    goal = make.goal(attainment=0.9)
    assert goal.constraints(make.reading(20))["attainment"] == pytest.approx(0.4)
    assert goal.constraints(make.reading(40))["attainment"] < 0
    assert set(goal.broken) == set(goal.constraints(make.reading(40)))
    assert all(value > 0 for value in goal.broken.values())


def test_measures_have_no_nan(make) -> None:
    assert make.reading(1, p95=math.nan).measures().itl_p95 is None
