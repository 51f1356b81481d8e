"""Two windows to a verdict."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.analysis import JudgedOutcome, judge, measures, rate_ratio
from headrace_operator.rollout.windows import combined


def stats(requests: float, good: float, seconds: float = 20.0, latency: float = 0.1) -> WindowStats:
    names = ("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max")
    return WindowStats(seconds=seconds, requests=requests, good=good, output_tokens=10, **dict.fromkeys(names, latency))


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (stats(80, 40), stats(80, 78), JudgedOutcome.BETTER),
        (stats(80, 40), stats(80, 44), JudgedOutcome.NOT_BETTER),
        (stats(80, 78), stats(80, 40), JudgedOutcome.NOT_BETTER),
        (stats(80, 80), stats(80, 80), JudgedOutcome.NOT_BETTER),
        (stats(80, 0), stats(80, 60), JudgedOutcome.BETTER),
        (stats(80, 40), stats(3, 3), JudgedOutcome.INCONCLUSIVE),
        (stats(0, 0), stats(80, 80), JudgedOutcome.INCONCLUSIVE),
        (stats(math.nan, math.nan), stats(80, 80), JudgedOutcome.INCONCLUSIVE),
        (stats(100, 95), stats(300, 285), JudgedOutcome.BETTER),  # same share of three times the requests
        (stats(300, 150), stats(60, 58), JudgedOutcome.NOT_BETTER),  # a better share of far fewer: goodput fell
    ],
)
def test_verdicts(before: WindowStats, after: WindowStats, outcome: JudgedOutcome) -> None:
    assert judge(before, after, min_requests=50, confidence=0.95).outcome is outcome


def test_the_message_has_the_numbers() -> None:
    message = judge(stats(80, 40), stats(80, 78), min_requests=50, confidence=0.95).message
    assert "attainment 50.0% -> 97.5%" in message
    assert "goodput 2 -> 3.9 requests/s" in message


def test_windows_of_different_length_are_compared_by_rate() -> None:
    ratio = rate_ratio(stats(100, 100, seconds=10), stats(200, 200, seconds=20), confidence=0.95)
    assert ratio.estimate == pytest.approx(1.0)
    assert 1.0 in ratio


def test_nothing_good_on_either_side_says_nothing() -> None:
    assert 1.0 in rate_ratio(stats(80, 0), stats(80, 0), confidence=0.95)


@given(st.integers(50, 500), st.integers(50, 500), st.data())
def test_better_is_never_said_both_ways(first: int, second: int, data: st.DataObject) -> None:
    a = stats(first, data.draw(st.integers(0, first)))
    b = stats(second, data.draw(st.integers(0, second)))
    both = [judge(*pair, min_requests=50, confidence=0.95).outcome for pair in ((a, b), (b, a))]
    assert both != [JudgedOutcome.BETTER, JudgedOutcome.BETTER]


def test_no_change_is_called_better_in_few_runs() -> None:
    rng = random.Random(1)

    def window() -> WindowStats:
        return stats(80, sum(rng.random() < 0.8 for _ in range(80)))

    wrong = sum(
        judge(window(), window(), min_requests=50, confidence=0.95).outcome is JudgedOutcome.BETTER for _ in range(1000)
    )
    assert wrong <= 50


def test_what_is_not_a_number_is_left_out_of_the_status() -> None:
    assert measures(stats(0, 0, latency=math.nan)).to_kube() == {"goodput": 0.0, "throughput": 0.5, "requests": 0.0}


def test_pods_together_add_up_and_show_the_worst_latency() -> None:
    both = combined([stats(10, 5, latency=0.1), stats(30, 30, seconds=22, latency=math.nan), stats(1, 1, latency=0.3)])
    assert (both.requests, both.good, both.ttft_p95) == (41, 36, 0.3)
    assert both.seconds == pytest.approx(62 / 3)
