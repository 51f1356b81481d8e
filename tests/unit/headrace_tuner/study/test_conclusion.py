import pytest

from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import (
    Candidate,
    Half,
    RunPhase,
    StudyRecord,
    StudyVerdict,
    TrialState,
    VerificationRecord,
)
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.study.conclusion import conclude, progress
from headrace_tuner.study.phases import Conclude

BASE, GOOD = {"prefill_chunk_size": 1024}, {"prefill_chunk_size": 64}
STUDY = StudyRecord(phase=RunPhase.BASELINE, baseline=Candidate(knobs=HotKnobs.of(BASE)))


def window(number: int, good: float) -> VerificationRecord:
    winner = (number + number // 2) % 2 == 1
    knobs, halves = HotKnobs.of(GOOD if winner else BASE), [Half(good=good / 2, requests=20, tokens=300)] * 2
    return VerificationRecord(
        number=number, winner=winner, knobs=knobs, seed=1, state=TrialState.COMPLETE, halves=halves
    )


@pytest.fixture
def found(make) -> StudyRecords:
    """A search that is over: the baseline is bad, trial 1 good."""
    return StudyRecords(study=STUDY, trials=(make.trial(0, 10, **BASE), make.trial(1, 39, **GOOD)))


def test_progress_names_best_and_baseline(make, found) -> None:
    study = progress(make.plan(), found, phase=RunPhase.SEARCHING, message="trial 6")
    assert study.total == 6
    assert study.best.knobs.values() == GOOD
    assert study.baseline.attainment == pytest.approx(0.25)


def test_throughput_is_compared_by_goodput_where_the_baseline_breaks_the_slo(make, found) -> None:
    plan = make.plan(goal=make.goal(objective=Objective.THROUGHPUT))
    windows = tuple(window(number, 38 if (number + number // 2) % 2 else 10) for number in range(6))
    ended = conclude(plan, StudyRecords(study=STUDY, trials=found.trials, windows=windows), Conclude())
    assert ended.verdict is StudyVerdict.IMPROVED
    assert ended.message.startswith("goodput of the winner")
