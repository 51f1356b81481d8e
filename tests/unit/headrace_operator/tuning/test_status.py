"""The status that is made from a run's records, trial and rollout."""

from datetime import UTC, datetime
from typing import Any

import pytest
from operator_resources import tuning_run

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import RunPhase, StudyRecord, TrialRecord
from headrace_api.v1alpha1.tuningrun import MAX_TRIAL_LOG, RolloutPhase, RolloutStatus, TuningRun
from headrace_operator.cluster.findings import no, yes
from headrace_operator.tuning.status import RunObservation, applied_finding, rollout_phase, run_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALID = yes(Reason.VALID, "every check passed")
TRIAL = no(Reason.PENDING, "the trial has not begun")
KNOBS = {"decodeRatio": 0.5}


def run(**spec: Any) -> TuningRun:
    return TuningRun.parse(tuning_run(**spec))


def study(verdict: str | None = None, **more: Any) -> StudyRecord:
    known = {"phase": "Searching", "message": "12 % more goodput", **({"verdict": verdict} if verdict else {})}
    return StudyRecord.model_validate({**known, **more})


def trial(number: int, state: str = "Complete") -> TrialRecord:
    return TrialRecord.model_validate({"number": number, "state": state, "knobs": KNOBS, "score": 1.0})


def rollout(phase: RolloutPhase) -> RolloutStatus:
    return RolloutStatus(phase=phase, started_at=NOW, message="why")


IMPROVED = study("Improved", proposal={"knobs": KNOBS})

APPLIED: dict[str, tuple[str, StudyRecord | None, RolloutPhase | None, bool, Reason]] = {
    "no record": ("Auto", None, None, False, Reason.NOT_DECIDED),
    "no verdict": ("Auto", study(), None, False, Reason.NOT_DECIDED),
    "keep": ("Auto", study("KeepBaseline"), None, False, Reason.NOTHING_TO_APPLY),
    "inconclusive": ("Auto", study("Inconclusive"), None, False, Reason.NOTHING_TO_APPLY),
    "improved, nothing proposed": ("Auto", study("Improved"), None, False, Reason.NOTHING_TO_APPLY),
    "never": ("Never", IMPROVED, None, False, Reason.NOT_REQUESTED),
    "propose": ("Propose", IMPROVED, None, False, Reason.AWAITING_APPROVAL),
    "auto": ("Auto", IMPROVED, None, False, Reason.APPLYING),
    "measuring before": ("Auto", IMPROVED, RolloutPhase.MEASURING_BEFORE, False, Reason.APPLYING),
    "applying": ("Auto", IMPROVED, RolloutPhase.APPLYING, False, Reason.APPLYING),
    "measuring after": ("Auto", IMPROVED, RolloutPhase.MEASURING_AFTER, False, Reason.APPLYING),
    "kept": ("Auto", IMPROVED, RolloutPhase.KEPT, True, Reason.KEPT),
    "rolled back": ("Auto", IMPROVED, RolloutPhase.ROLLED_BACK, False, Reason.ROLLED_BACK),
    "failed": ("Auto", IMPROVED, RolloutPhase.FAILED, False, Reason.APPLY_FAILED),
    "kept although apply was withdrawn": ("Never", IMPROVED, RolloutPhase.KEPT, True, Reason.KEPT),
}


@pytest.mark.parametrize("case", APPLIED)
def test_whether_the_proposal_is_in_force(case: str) -> None:
    policy, record, phase, holds, reason = APPLIED[case]
    moved = None if phase is None else rollout(phase)
    finding = applied_finding(run(apply=policy), StudyRecords(study=record), moved)
    assert (finding.holds, finding.reason) == (holds, reason)


PHASES = {
    RolloutPhase.MEASURING_BEFORE: RunPhase.APPLYING,
    RolloutPhase.APPLYING: RunPhase.APPLYING,
    RolloutPhase.MEASURING_AFTER: RunPhase.CHECKING,
    RolloutPhase.KEPT: RunPhase.COMPLETED,
    RolloutPhase.ROLLED_BACK: RunPhase.COMPLETED,
    RolloutPhase.FAILED: RunPhase.COMPLETED,
}


@pytest.mark.parametrize("phase", RolloutPhase)
def test_every_rollout_phase_maps_to_a_phase_of_the_run(phase: RolloutPhase) -> None:
    assert rollout_phase(rollout(phase)) is PHASES[phase]


def seen(phase: RunPhase = RunPhase.SEARCHING, **more: Any) -> RunObservation:
    return RunObservation(**{"phase": phase, "message": "m", "spec": VALID, "trial": TRIAL, **more})


COMPLETE: dict[str, tuple[RunObservation, bool, Reason]] = {
    "waits": (seen(RunPhase.PENDING), False, Reason.PENDING),
    "prepares": (seen(RunPhase.PREPARING), False, Reason.PENDING),
    "searches": (seen(), False, Reason.RUNNING),
    "decided": (seen(records=StudyRecords(study=study("KeepBaseline"))), True, Reason.FINISHED),
    "decided, then failed": (
        seen(RunPhase.FAILED, records=StudyRecords(study=study("KeepBaseline"))),
        True,
        Reason.FINISHED,
    ),
    "the Job failed": (seen(RunPhase.FAILED, job_failed=True), False, Reason.JOB_FAILED),
    "ended otherwise": (seen(RunPhase.FAILED), False, Reason.FINISHED),
}


@pytest.mark.parametrize("case", COMPLETE)
def test_whether_the_study_is_complete(case: str) -> None:
    observation, holds, reason = COMPLETE[case]
    found = {item.type: item for item in run_status(run(), observation, now=NOW).conditions}
    assert (found["Complete"].status.value == "True", found["Complete"].reason) == (holds, reason.value)
    assert set(found) == {"SpecValid", "TrialReady", "Complete", "Applied"}


def test_trials_are_counted_and_the_newest_are_shown() -> None:
    trials = [trial(number, "Void" if number % 2 else "Complete") for number in range(MAX_TRIAL_LOG + 2)]
    made = run_status(run(), seen(records=StudyRecords(study=study(total=300), trials=tuple(trials))), now=NOW)
    assert made.trials is not None
    assert (made.trials.done, made.trials.failed, made.trials.total) == (len(trials), len(trials) // 2, 300)
    assert [item.number for item in made.trial_log] == list(range(2, MAX_TRIAL_LOG + 2))


@pytest.mark.parametrize(
    ("total", "budget", "expected"),
    [(20, {"trials": 12}, 20), (None, {"trials": 12}, 12), (None, {"duration": "1h"}, None)],
)
def test_the_total_is_the_studys_or_the_budgets(
    total: int | None, budget: dict[str, Any], expected: int | None
) -> None:
    record = study(**({"total": total} if total else {}))
    made = run_status(run(budget=budget), seen(records=StudyRecords(study=record)), now=NOW)
    assert made.trials is not None
    assert made.trials.total == expected


def test_lost_records_do_not_erase_what_the_status_knew() -> None:
    subject = run()
    known = run_status(
        subject,
        seen(records=StudyRecords(study=IMPROVED, trials=(trial(0),)), rollout=rollout(RolloutPhase.APPLYING)),
        now=NOW,
    )
    after = run_status(subject.model_copy(update={"status": known}), seen(), now=NOW)
    assert (after.proposal, after.verdict, after.trial_log) == (known.proposal, known.verdict, known.trial_log)
    assert after.rollout == known.rollout
