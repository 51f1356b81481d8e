import pytest

from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import (
    Candidate,
    Half,
    RunPhase,
    StudyRecord,
    StudyVerdict,
    TimeWindow,
    TrialState,
    VerificationRecord,
)
from headrace_tuner.study.conclusion import conclude
from headrace_tuner.study.phases import (
    Conclude,
    KeepLoad,
    Prepare,
    RunTrial,
    StudyFinished,
    Verify,
    next_action,
)

BASE, GOOD = {"prefill_chunk_size": 1024}, {"prefill_chunk_size": 64}
STUDY = StudyRecord(phase=RunPhase.BASELINE, baseline=Candidate(knobs=HotKnobs.of(BASE)))


def window(
    number: int, good: float, *, state: TrialState = TrialState.COMPLETE, reason: str = ""
) -> VerificationRecord:
    winner = (number + number // 2) % 2 == 1
    halves = [Half(good=good / 2, requests=20, tokens=300, seconds=10)] * 2 if state is TrialState.COMPLETE else []
    return VerificationRecord(
        number=number, winner=winner, knobs=HotKnobs.of(GOOD if winner else BASE), seed=1, state=state, halves=halves,
        reason=reason,
    )  # fmt: skip


@pytest.fixture
def found(make) -> StudyRecords:
    """A search that is over: the baseline is bad, trial 1 good."""
    trials = [make.trial(0, 10, **BASE), make.trial(1, 39, **GOOD)]
    trials += [make.trial(number, 30, prefill_chunk_size=200 + number) for number in range(2, 6)]
    return StudyRecords(study=STUDY, trials=tuple(trials))


def test_the_baseline_comes_first(make) -> None:
    assert next_action(make.plan(), StudyRecords(), now=0) == Prepare()
    assert next_action(make.plan(), StudyRecords(study=STUDY), now=0) == RunTrial(0, RunPhase.BASELINE, BASE)


def test_then_the_sampler_until_the_budget_is_spent(make, found) -> None:
    some = StudyRecords(study=STUDY, trials=found.trials[:5])
    assert next_action(make.plan(trials=6), some, now=0) == RunTrial(5, RunPhase.SEARCHING)
    assert isinstance(next_action(make.plan(trials=6), found, now=0), Verify)


def test_a_time_budget_counts_from_the_first_window(make, found) -> None:
    begun = TimeWindow(start="2026-01-01T00:00:00Z", end="2026-01-01T00:00:20Z")
    first = found.trials[0].model_copy(update={"window": begun})
    records = StudyRecords(study=STUDY, trials=(first, *found.trials[1:]))
    plan, start = make.plan(trials=None, duration=60.0), begun.start.timestamp()
    assert next_action(plan, records, now=start + 59) == RunTrial(6, RunPhase.SEARCHING)
    assert isinstance(next_action(plan, records, now=start + 60), Verify)


def test_a_baseline_that_cannot_be_measured_ends_the_study(make) -> None:
    voids = tuple(make.void(number, reason=f"restart {number}", **BASE) for number in range(3))
    assert next_action(make.plan(), StudyRecords(study=STUDY, trials=voids[:2]), now=0).number == 2
    action = next_action(make.plan(), StudyRecords(study=STUDY, trials=voids), now=0)
    assert action == Conclude(StudyVerdict.ABSTAINED, "the baseline could not be measured: restart 2")


def test_a_load_too_light_to_tell_is_not_searched(make) -> None:
    all_good = make.trial(0, 40, **BASE)
    many = all_good.measures.model_copy(update={"requests": 4000.0, "good": 4000.0})
    records = StudyRecords(study=STUDY, trials=(all_good.model_copy(update={"measures": many}),))
    action = next_action(make.plan(), records, now=0)
    assert action.verdict is StudyVerdict.ABSTAINED
    assert "raise workload.rate" in action.message
    assert isinstance(next_action(make.plan(min_effect=0.0001), records, now=0), RunTrial)


def test_five_voids_in_a_row_end_the_search(make, found) -> None:
    voids = tuple(make.void(number, **GOOD) for number in range(1, 6))
    action = next_action(make.plan(trials=99), StudyRecords(study=STUDY, trials=(found.trials[0], *voids)), now=0)
    assert action.verdict is StudyVerdict.ABSTAINED


def test_verification_goes_a_b_b_a_with_a_seed_per_block(make, found) -> None:
    seen, records = [], found
    while isinstance(action := next_action(make.plan(blocks=3), records, now=0), Verify):
        seen.append(("B" if action.winner else "A", action.block))
        assert action.knobs == (GOOD if action.winner else BASE)
        records = StudyRecords(
            study=STUDY,
            trials=records.trials,
            windows=(*records.windows, window(action.number, 38 if action.winner else 10)),
        )
    assert seen == [("A", 0), ("B", 0), ("B", 1), ("A", 1), ("A", 2), ("B", 2)]
    assert action == Conclude()
    ended = conclude(make.plan(blocks=3), records, action)
    assert ended.verdict is StudyVerdict.IMPROVED
    assert ended.phase is RunPhase.PROPOSED
    assert ended.proposal.knobs.values() == GOOD
    assert ended.effect.low > 1.05
    assert "3 paired blocks" in ended.message


def test_once_verification_began_no_trial_is_added(make, found) -> None:
    records = StudyRecords(study=STUDY, trials=found.trials, windows=(window(0, 10),))
    assert isinstance(next_action(make.plan(trials=500), records, now=0), Verify)


def test_a_void_window_voids_its_block_and_spares_are_few(make, found) -> None:
    void = window(0, 0, state=TrialState.VOID, reason="a restart")
    action = next_action(make.plan(), StudyRecords(study=STUDY, trials=found.trials, windows=(void,)), now=0)
    assert (action.number, action.block) == (2, 1)
    voids = tuple(window(number, 0, state=TrialState.VOID, reason="a restart") for number in (0, 2, 4, 6, 8))
    action = next_action(make.plan(blocks=3), StudyRecords(study=STUDY, trials=found.trials, windows=voids), now=0)
    assert action.verdict is StudyVerdict.INCONCLUSIVE
    assert "a restart" in action.message


def test_nothing_better_needs_no_verification(make) -> None:
    plan = make.plan(trials=2)
    kept = StudyRecords(study=STUDY, trials=(make.trial(0, 38, **BASE), make.trial(1, 37, **GOOD)))
    assert next_action(plan, kept, now=0).verdict is StudyVerdict.KEEP_BASELINE
    tied = StudyRecords(study=STUDY, trials=(make.trial(0, 38, **BASE), make.trial(1, 38, **GOOD)))
    assert next_action(plan, tied, now=0).verdict is StudyVerdict.KEEP_BASELINE
    bad = StudyRecords(study=STUDY, trials=(make.trial(0, 20, **BASE), make.trial(1, 19, **GOOD)))
    assert next_action(plan, bad, now=0).verdict is StudyVerdict.NO_FEASIBLE_CONFIG


@pytest.mark.parametrize("keep", [True, False])
def test_after_the_verdict(make, found, keep: bool) -> None:
    improved = STUDY.model_copy(update={"verdict": StudyVerdict.IMPROVED})
    action = next_action(make.plan(keep_load=keep), StudyRecords(study=improved), now=0)
    assert action == (KeepLoad() if keep else StudyFinished())
    kept = STUDY.model_copy(update={"verdict": StudyVerdict.KEEP_BASELINE})
    assert next_action(make.plan(keep_load=keep), StudyRecords(study=kept), now=0) == StudyFinished()
