"""Makes a TuningRun's status from the Job's records, the trial pod and the rollout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace_api.v1alpha1.conditions import ConditionType, Reason, merge_conditions
from headrace_api.v1alpha1.record_codec import StudyRecords, decode
from headrace_api.v1alpha1.records import (
    RunPhase,
    StudyVerdict,
    TrialState,
)
from headrace_api.v1alpha1.tuningrun import (
    MAX_TRIAL_LOG,
    ApplyPolicy,
    RolloutPhase,
    RolloutStatus,
    TrialCounts,
    TuningRun,
    TuningRunStatus,
)
from headrace_operator.cluster.findings import Finding, no, yes

LOST = (TrialState.FAILED, TrialState.VOID)


def read_records(config_map: Mapping[str, Any] | None) -> StudyRecords:
    """Records of ConfigMap RUN-records. What cannot be read is left out and named in the status: the Job may be newer
    than this operator, and it alone decides whether to continue."""
    return decode((config_map or {}).get("data") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """What this pass found and decided."""

    phase: RunPhase
    message: str
    spec: Finding
    trial: Finding
    records: StudyRecords = field(default_factory=StudyRecords)
    rollout: RolloutStatus | None = None
    job_failed: bool = False


def run_status(run: TuningRun, seen: RunObservation, *, now: datetime) -> TuningRunStatus:
    """The new status; what this pass does not know keeps its old value."""
    old, generation = run.status, run.metadata.generation or 0
    findings = {
        ConditionType.SPEC_VALID: seen.spec,
        ConditionType.TRIAL_READY: seen.trial,
        ConditionType.COMPLETE: _complete(seen),
        ConditionType.APPLIED: applied_finding(run, seen.records, seen.rollout),
    }
    new = [finding.condition(type_, generation=generation, now=now) for type_, finding in findings.items()]
    known: dict[str, Any] = {
        "observed_generation": generation,
        "phase": seen.phase,
        "message": seen.message + _unreadable(seen.records),
        "conditions": merge_conditions(old.conditions, new),
        "rollout": seen.rollout or old.rollout,
        **_from_records(run, seen.records),
    }
    return old.model_copy(update=known)


def _from_records(run: TuningRun, records: StudyRecords) -> dict[str, Any]:
    study = records.study
    known: dict[str, Any] = {}
    if records.trials or study is not None:
        total = study.total if study and study.total is not None else run.spec.budget.trials
        failed = sum(1 for trial in records.trials if trial.state in LOST)
        known["trials"] = TrialCounts.of(len(records.trials), failed=failed, total=total)
        known["trial_log"] = [trial.summary() for trial in records.trials[-MAX_TRIAL_LOG:]]
    if study is not None:
        fields = ("baseline", "best", "effect", "verdict", "proposal")
        known |= {name: value for name in fields if (value := getattr(study, name)) is not None}
    return known


def _unreadable(records: StudyRecords) -> str:
    """A clause for the message that names the records left out; empty if all were read."""
    if not records.unreadable:
        return ""
    first, count = records.unreadable[0], len(records.unreadable)
    return f" ({count} of the Job's records cannot be read here and are left out; the first is {first})"


def _complete(seen: RunObservation) -> Finding:
    study = seen.records.study
    if study is not None and study.verdict is not None:
        return yes(Reason.FINISHED, f"verdict {study.verdict.value}: {study.message}")
    if seen.phase is RunPhase.FAILED:
        return no(Reason.JOB_FAILED if seen.job_failed else Reason.FINISHED, seen.message)
    if seen.phase in (RunPhase.PENDING, RunPhase.PREPARING):
        return no(Reason.PENDING, seen.message)
    return no(Reason.RUNNING, seen.message)


_ROLLOUT_REASONS = {
    RolloutPhase.KEPT: Reason.KEPT,
    RolloutPhase.ROLLED_BACK: Reason.ROLLED_BACK,
    RolloutPhase.FAILED: Reason.APPLY_FAILED,
}


def applied_finding(run: TuningRun, records: StudyRecords, rollout: RolloutStatus | None) -> Finding:
    """Whether the proposal is in force, and why."""
    if rollout is not None:
        reason = _ROLLOUT_REASONS.get(rollout.phase, Reason.APPLYING)
        return Finding(rollout.phase is RolloutPhase.KEPT, reason, rollout.message)
    study = records.study
    if study is None or study.verdict is None:
        return no(Reason.NOT_DECIDED, "the study has no verdict yet")
    if study.verdict is not StudyVerdict.IMPROVED or study.proposal is None:
        return no(Reason.NOTHING_TO_APPLY, f"verdict {study.verdict.value}: the service keeps its config")
    if run.spec.apply is ApplyPolicy.NEVER:
        return no(Reason.NOT_REQUESTED, "spec.apply is Never")
    if run.spec.apply is ApplyPolicy.PROPOSE:
        return no(Reason.AWAITING_APPROVAL, "status.proposal has the knobs; copy them, or set apply: Auto")
    return no(Reason.APPLYING, "the rollout is beginning")


def rollout_phase(rollout: RolloutStatus) -> RunPhase:
    """Phase of a run whose proposal is being rolled out."""
    if rollout.phase.terminal:
        return RunPhase.COMPLETED
    return RunPhase.CHECKING if rollout.phase is RolloutPhase.MEASURING_AFTER else RunPhase.APPLYING
