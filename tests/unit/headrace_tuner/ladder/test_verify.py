import pytest

from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.records import Half, StudyVerdict, TrialState, VerificationRecord
from headrace_core.evidence.intervals import Interval
from headrace_core.evidence.verdict import RateKind, paired_ratio
from headrace_tuner.ladder.verify import complete_blocks, decide, window_pairs


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
def test_an_interval_decides_the_verdict(low: float, high: float, feasible: bool, verdict: StudyVerdict) -> None:
    assert decide(Interval(1.05, low, high), min_effect=0.05, any_feasible=feasible) is verdict


def record(number: int, *, winner: bool, tokens: float = 300, seconds: float | None = 10.0) -> VerificationRecord:
    halves = [Half(good=9, requests=10, tokens=tokens, seconds=seconds)] * 2
    return VerificationRecord(
        number=number, winner=winner, knobs=HotKnobs(), seed=1, state=TrialState.COMPLETE, halves=halves
    )


def test_a_block_counts_only_with_both_windows() -> None:
    windows = [record(0, winner=False), record(1, winner=True), record(3, winner=True)]
    assert complete_blocks(windows) == [(windows[0], windows[1])]


@pytest.mark.parametrize("seconds", [[10.0] * 4, [None] * 4, [10.0, None, 10.0, None]])
def test_halves_without_their_length_are_compared_as_equally_long(seconds: list[float | None]) -> None:
    blocks = complete_blocks(
        record(number, winner=number % 2 == 1, tokens=300 * (1 + number % 2), seconds=length)
        for number, length in enumerate(seconds)
    )
    ratio = paired_ratio(window_pairs(blocks), rate=RateKind.THROUGHPUT, confidence=0.9)
    assert ratio.estimate == pytest.approx(2)
