"""Two windows and paired windows to an interval. Coverage is in tests/property."""

import math

import pytest

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.intervals import Interval
from headrace_core.evidence.verdict import (
    JudgedOutcome,
    RateKind,
    WindowPair,
    enough,
    judge,
    largest_gain,
    paired_ratio,
    rate_ratio,
)


def counts(requests: float, good: float, seconds: float = 20.0) -> Counts:
    return Counts(requests=requests, good=good, seconds=seconds, output_tokens=10)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (counts(80, 40), counts(80, 78), JudgedOutcome.BETTER),
        (counts(80, 40), counts(80, 44), JudgedOutcome.NOT_BETTER),
        (counts(80, 78), counts(80, 40), JudgedOutcome.NOT_BETTER),
        (counts(80, 80), counts(80, 80), JudgedOutcome.NOT_BETTER),
        (counts(80, 0), counts(80, 60), JudgedOutcome.BETTER),
        (counts(80, 0), counts(80, 0), JudgedOutcome.NOT_BETTER),
        (counts(80, 40), counts(3, 3), JudgedOutcome.INCONCLUSIVE),
        (counts(0, 0), counts(80, 80), JudgedOutcome.INCONCLUSIVE),
        (counts(math.nan, math.nan), counts(80, 80), JudgedOutcome.INCONCLUSIVE),
        (counts(80, 40, seconds=math.nan), counts(80, 80), JudgedOutcome.INCONCLUSIVE),
        (counts(80, 40), counts(80, 80, seconds=0), JudgedOutcome.INCONCLUSIVE),
        (counts(100, 95), counts(300, 285), JudgedOutcome.BETTER),  # same share of three times the requests
        (counts(300, 150), counts(60, 58), JudgedOutcome.NOT_BETTER),  # a better share of far fewer: goodput fell
    ],
)
def test_two_windows_are_judged(before: Counts, after: Counts, outcome: JudgedOutcome) -> None:
    assert judge(before, after, min_requests=50, confidence=0.95).outcome is outcome


def test_too_few_requests_exclude_nothing() -> None:
    judged = judge(counts(80, 40), counts(3, 3), min_requests=50, confidence=0.95)
    assert (judged.attainment.low, judged.attainment.high) == (-1, 1)
    assert (judged.goodput.low, judged.goodput.high) == (0, math.inf)
    assert enough(counts(80, 40), 50)
    assert not enough(counts(3, 3), 50)


def test_windows_of_different_length_are_compared_by_rate() -> None:
    ratio = rate_ratio(counts(100, 100, seconds=10), counts(200, 200, seconds=20), confidence=0.95)
    assert ratio.estimate == pytest.approx(1.0)
    assert 1.0 in ratio


def test_nothing_good_on_either_side_says_nothing() -> None:
    assert 1.0 in rate_ratio(counts(80, 0), counts(80, 0), confidence=0.95)


Window = tuple[Counts, ...]


def window(good: float, *, size: float = 24.0, tokens: float = 800.0, seconds: float = 20.0) -> Window:
    return (Counts(good=good / 2, requests=size / 2, seconds=seconds / 2, output_tokens=tokens / 2),) * 2


def pairs(baseline: list[Window], candidate: list[Window]) -> list[WindowPair]:
    return [WindowPair(baseline=old, candidate=new) for old, new in zip(baseline, candidate, strict=True)]


def goodput(baseline: list[float], candidate: list[float], confidence: float = 0.95) -> Interval:
    sides = [[window(good) for good in side] for side in (baseline, candidate)]
    return paired_ratio(pairs(*sides), rate=RateKind.GOODPUT, confidence=confidence)


PINNED = [
    (([8, 9, 8], [23, 22, 23]), (2.72, 2.016271645239258, 3.822343296432718)),
    (([4, 12, 20], [12, 24, 24]), (1.6666666666666667, 0.6340338472608998, 4.381119067661927)),
    (([0, 0], [24, 24]), (95.99999999999999, 8.309806640644815, 999.9999999999998)),
    (([24, 24], [24, 24]), (1.0, 0.9258998703338825, 1.0800303920977943)),
]


def test_a_clear_gain_excludes_none() -> None:
    effect = goodput([8, 9, 8], [23, 22, 23])
    assert effect.estimate == pytest.approx(68 / 25)
    assert 1.5 < effect.low < effect.estimate < effect.high


def test_the_interval_is_that_of_before_the_statistics_moved_here() -> None:
    # Computed with the former module of the tuner, which took its quantiles from scipy.
    for given, wanted in PINNED:
        found = goodput(*given)
        assert (found.estimate, found.low, found.high) == pytest.approx(wanted, rel=1e-9)


def test_equal_sides_show_no_effect() -> None:
    effect = goodput([20, 22], [20, 22])
    assert effect.estimate == 1
    assert effect.low < 1 < effect.high


def test_noise_between_windows_widens_what_the_counts_alone_would_call_sure() -> None:
    steady = goodput([12, 12, 12], [20, 20, 20])
    restless = goodput([4, 12, 20], [12, 24, 24])
    assert restless.estimate == pytest.approx(steady.estimate)
    assert restless.low < 1 < steady.low


def test_all_and_nothing_stay_finite() -> None:
    effect = goodput([0, 0], [24, 24])
    assert effect.low > 5
    assert effect.high <= 1000
    assert goodput([0, 0], [0, 0]).estimate == 1


def test_throughput_ignores_one_answer_at_the_edge() -> None:
    base = [window(24), window(24)]
    same = paired_ratio(pairs(base, base), rate=RateKind.THROUGHPUT, confidence=0.95)
    assert same.low < 1 < same.high
    more = paired_ratio(
        pairs(base, [window(24, tokens=1600)] * 2), rate=RateKind.THROUGHPUT, confidence=0.95
    )  # fmt: skip
    assert more.estimate == pytest.approx(2)
    assert more.low > 1.5


def test_throughput_is_by_time_whatever_the_windows_length() -> None:
    base = [window(24), window(24)]
    longer = [window(24, tokens=1600, seconds=40)] * 2
    assert paired_ratio(pairs(base, longer), rate=RateKind.THROUGHPUT, confidence=0.95).estimate == pytest.approx(1)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_pairs_say_nothing(count: int) -> None:
    with pytest.raises(ValueError, match="two windows"):
        goodput([1.0] * count, [2.0] * count)


def test_a_load_that_the_baseline_serves_leaves_nothing_to_win() -> None:
    assert largest_gain(counts(400, 400), confidence=0.95) < 1.02
    assert largest_gain(counts(24, 24), confidence=0.95) > 1.05  # 24 of 24 may still be luck
    assert largest_gain(counts(0, 0), confidence=0.95) == pytest.approx(1e9)
