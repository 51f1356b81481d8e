import pytest

from headrace_api.v1alpha1.records import Effect, Half, StudyVerdict
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.ladder.effect import compare, decide, most_possible


def windows(*goods: float, size: float = 24.0, tokens: float = 400.0) -> list[list[Half]]:
    return [[Half(good=good / 2, requests=size / 2, tokens=tokens)] * 2 for good in goods]


def goodput(baseline: list, winner: list, confidence: float = 0.95) -> Effect:
    return compare(baseline, winner, objective=Objective.GOODPUT, confidence=confidence)


def test_a_clear_gain_excludes_none() -> None:
    effect = goodput(windows(8, 9, 8), windows(23, 22, 23))
    assert effect.ratio == pytest.approx(68 / 25)
    assert 1.5 < effect.low < effect.ratio < effect.high


def test_the_same_on_both_sides_is_no_effect() -> None:
    effect = goodput(windows(20, 22), windows(20, 22))
    assert effect.ratio == 1
    assert effect.low < 1 < effect.high


def test_noise_between_windows_widens_what_the_counts_alone_would_call_sure() -> None:
    steady = goodput(windows(12, 12, 12), windows(20, 20, 20))
    restless = goodput(windows(4, 12, 20), windows(12, 24, 24))
    assert restless.ratio == pytest.approx(steady.ratio)
    assert restless.low < 1 < steady.low


def test_all_and_nothing_stay_finite() -> None:
    effect = goodput(windows(0, 0), windows(24, 24))
    assert effect.low > 5
    assert effect.high <= 1000
    assert goodput(windows(0, 0), windows(0, 0)).ratio == 1


def test_throughput_ignores_one_answer_at_the_edge() -> None:
    same = compare(windows(24, 24), windows(24, 24), objective=Objective.THROUGHPUT, confidence=0.95)
    assert same.low < 1 < same.high
    more = compare(
        windows(24, 24, tokens=400), windows(24, 24, tokens=800), objective=Objective.THROUGHPUT, confidence=0.95
    )
    assert more.ratio == pytest.approx(2)
    assert more.low > 1.5


def test_one_window_a_side_says_nothing() -> None:
    with pytest.raises(ValueError, match="two windows"):
        goodput(windows(1), windows(1, 2))


@pytest.mark.parametrize(
    ("low", "high", "feasible", "verdict"),
    [
        (1.06, 1.5, True, StudyVerdict.IMPROVED),
        (1.06, 1.5, False, StudyVerdict.IMPROVED),
        (1.05, 1.5, True, StudyVerdict.INCONCLUSIVE),
        (0.9, 1.2, True, StudyVerdict.INCONCLUSIVE),
        (0.9, 1.04, True, StudyVerdict.KEEP_BASELINE),
        (0.9, 1.2, False, StudyVerdict.NO_FEASIBLE_CONFIG),
    ],
)
def test_verdicts(low: float, high: float, feasible: bool, verdict: StudyVerdict) -> None:
    assert decide(Effect(ratio=1.05, low=low, high=high), min_effect=0.05, any_feasible=feasible) is verdict


def test_a_load_that_the_baseline_serves_leaves_nothing_to_win() -> None:
    assert most_possible(400, 400, confidence=0.95) < 1.02
    assert most_possible(24, 24, confidence=0.95) > 1.05  # 24 of 24 may still be luck
