"""The recorded trials of each config: repeats pooled, best and baseline picked out. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import Candidate, TrialRecord, TrialState
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_core.evidence.counts import Counts, sum_of
from headrace_core.knobs.table import KnobValue
from headrace_tuner.ladder.objective import StudyGoal

MEASURED = (TrialState.COMPLETE, TrialState.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """All measured trials of one config taken together: a repeat is not a second chance to be lucky."""

    candidate: Candidate
    value: float  # goodput or throughput, without the margin that breaks ties
    counts: Counts
    feasible: bool


def pool(goal: StudyGoal, trials: Iterable[TrialRecord]) -> list[Pooled]:
    """Measured trials by config, in the order of their first trial."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in trials:
        if record.state in MEASURED and _counts(record) is not None and record.score is not None:
            groups.setdefault(canonical(record.knobs.values()), []).append(record)
    return [_pooled(goal, group) for group in groups.values()]


def _pooled(goal: StudyGoal, group: Sequence[TrialRecord]) -> Pooled:
    counts = sum_of([found for record in group if (found := _counts(record)) is not None])
    measures = [record.measures for record in group if record.measures is not None]
    goodput = goal.objective is Objective.GOODPUT
    values = [(item.goodput if goodput else item.throughput) or 0.0 for item in measures]
    scores = [record.score or 0.0 for record in group]
    return Pooled(
        # A window resolves fewer than four digits, and people read this number in `kubectl get`.
        candidate=Candidate(
            knobs=group[0].knobs, score=float(f"{sum(scores) / len(scores):.4g}"), attainment=counts.attainment
        ),
        value=sum(values) / len(values),
        counts=counts,
        feasible=counts.attainment >= goal.attainment,
    )


def _counts(record: TrialRecord) -> Counts | None:
    return record.measures.counts() if record.measures is not None else None


def best_of(goal: StudyGoal, trials: Iterable[TrialRecord]) -> Pooled | None:
    """The config with the best score among those that meet the attainment; if none does, among all."""
    return max(pool(goal, trials), key=lambda item: (item.feasible, item.candidate.score or 0.0), default=None)


def baseline_of(goal: StudyGoal, records: StudyRecords) -> Pooled | None:
    """The baseline's own trials."""
    return (
        None if records.baseline is None else next(iter(pool(goal, of_config(records.trials, records.baseline))), None)
    )


def better(goal: StudyGoal, best: Pooled, baseline: Pooled) -> bool:
    """Whether `best` did more than `baseline`, and is therefore worth verifying."""
    if goal.objective is Objective.THROUGHPUT and best.feasible != baseline.feasible:
        return best.feasible
    return best.value > baseline.value and (best.feasible or goal.objective is Objective.GOODPUT)


def of_config(trials: Iterable[TrialRecord], config: Candidate) -> list[TrialRecord]:
    """The trials of one config."""
    key = canonical(config.knobs.values())
    return [record for record in trials if canonical(record.knobs.values()) == key]


def canonical(knobs: Mapping[str, KnobValue]) -> str:
    """The same key for the same config, however its numbers are written: 0.5 and 0.50, 64 and 64.0."""
    plain = {
        name: round(value, 9) + 0.0 if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        for name, value in knobs.items()
    }
    return json.dumps(plain, sort_keys=True)
