"""What a study does next, decided from its records alone. Pure.

Nothing is remembered outside the records, so a tuner that was killed at any point continues where they end, and repeats
at most the one window that had not been recorded.

    Prepare -> baseline trial -> search trials -> verification windows (A-B-B-A) -> Conclude -> KeepLoad | Finished
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import (
    Candidate,
    RunPhase,
    StudyVerdict,
    TrialRecord,
    TrialState,
    VerificationRecord,
)
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_core.evidence.verdict import largest_gain
from headrace_core.knobs.table import KnobValue
from headrace_tuner.ladder.objective import StudyGoal
from headrace_tuner.ladder.trials import (
    MEASURED,
    Pooled,
    baseline_of,
    best_of,
    better,
    of_config,
    pool,
)
from headrace_tuner.ladder.verify import complete_blocks

BASELINE_TRIES = 3
VOIDS_IN_A_ROW = 5
SPARE_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The study that the spec asks for. `trials` counts all, including the baseline's; `duration` in seconds.

    `keep_load`: the load continues after an Improved verdict until the operator has applied the proposal.
    """

    goal: StudyGoal
    trials: int | None
    duration: float | None
    blocks: int
    min_effect: float
    confidence: float
    keep_load: bool


@dataclass(frozen=True, slots=True)
class Prepare:
    """Read the config in force: it is the baseline."""


@dataclass(frozen=True, slots=True)
class RunTrial:
    """Measure one config; without `knobs` the sampler proposes them."""

    number: int
    phase: RunPhase
    knobs: Mapping[str, KnobValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Measure one window of the verification; both windows of a `block` get the same fresh seed."""

    number: int
    block: int
    winner: bool
    knobs: Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True)
class Conclude:
    """Record the verdict. `verdict` None: the verification's windows decide, see `ladder/verify.py`."""

    verdict: StudyVerdict | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class KeepLoad:
    """Keep the load on the service while the operator applies the proposal."""


@dataclass(frozen=True, slots=True)
class StudyFinished:
    """Nothing is left to do."""


Action = Prepare | RunTrial | Verify | Conclude | KeepLoad | StudyFinished


def next_action(plan: StudyPlan, records: StudyRecords, *, now: float) -> Action:
    """The next thing to do; `now` in Unix seconds."""
    study = records.study
    if study is None or study.baseline is None:
        return Prepare()
    if study.verdict is not None:
        return KeepLoad() if study.verdict is StudyVerdict.IMPROVED and plan.keep_load else StudyFinished()
    if records.windows:  # once verification has begun, the candidate is fixed
        return _verify(plan, records)
    return _baseline(plan, records, study.baseline) or _search(plan, records, now=now) or _verify(plan, records)


def _baseline(plan: StudyPlan, records: StudyRecords, baseline: Candidate) -> Action | None:
    measured = pool(plan.goal, of_config(records.trials, baseline))
    if not measured:
        if len(records.trials) < BASELINE_TRIES:
            return RunTrial(_next_trial(records.trials), RunPhase.BASELINE, baseline.knobs.values())
        reason = records.trials[-1].reason
        return Conclude(StudyVerdict.ABSTAINED, f"the baseline could not be measured: {reason}")
    if len(records.trials) == 1 and plan.goal.objective is Objective.GOODPUT:
        return _hopeless(plan, measured[0])
    return None


def _hopeless(plan: StudyPlan, baseline: Pooled) -> Conclude | None:
    possible = largest_gain(baseline.counts, confidence=plan.confidence)
    if possible >= 1 + plan.min_effect:
        return None
    return Conclude(
        StudyVerdict.ABSTAINED,
        "the load is too light to distinguish configs: the baseline serves "
        f"{baseline.counts.attainment:.1%} of it within the SLO, so no config can do more than {possible - 1:.1%} "
        f"better, and minEffect is {plan.min_effect:.1%}; raise workload.rate, or tighten the SLO",
    )


def _search(plan: StudyPlan, records: StudyRecords, *, now: float) -> Action | None:
    tail = records.trials[-VOIDS_IN_A_ROW:]
    if len(tail) == VOIDS_IN_A_ROW and all(record.state is TrialState.VOID for record in tail):
        return Conclude(
            StudyVerdict.ABSTAINED, f"{VOIDS_IN_A_ROW} trials in a row were void, the last one: {tail[-1].reason}"
        )
    spent = plan.trials is not None and len(records.trials) >= plan.trials
    late = plan.duration is not None and now - _began(records.trials, now) >= plan.duration
    return None if spent or late else RunTrial(_next_trial(records.trials), RunPhase.SEARCHING)


def _verify(plan: StudyPlan, records: StudyRecords) -> Action:
    best, baseline = best_of(plan.goal, records.trials), baseline_of(plan.goal, records)
    if best is None or baseline is None or not better(plan.goal, best, baseline):
        return Conclude(*_nothing_better(baseline))
    if len(complete_blocks(records.windows)) >= plan.blocks:
        return Conclude()
    number = _next_window(records.windows)
    block = number // 2
    if block >= plan.blocks + SPARE_BLOCKS:
        reason = next((item.reason for item in reversed(records.windows) if item.reason), "")
        return Conclude(
            StudyVerdict.INCONCLUSIVE, f"too many windows of the verification were void, the last one: {reason}"
        )
    winner = (number + block) % 2 == 1  # A B, B A, A B, ...
    chosen = best if winner else baseline
    return Verify(number=number, block=block, winner=winner, knobs=chosen.candidate.knobs.values())


def _nothing_better(baseline: Pooled | None) -> tuple[StudyVerdict, str]:
    if baseline is not None and not baseline.feasible:
        return StudyVerdict.NO_FEASIBLE_CONFIG, (
            "no config met the SLO's attainment, and none did better than the baseline; lower workload.rate, relax the "
            "SLO, widen spec.knobs, or give the model more hardware"
        )
    return StudyVerdict.KEEP_BASELINE, "no trial did better than the baseline"


def _next_window(windows: Sequence[VerificationRecord]) -> int:
    if not windows:
        return 0
    last = max(windows, key=lambda item: item.number)
    # A void window voids its block: half a pair cannot be compared.
    return last.number + 1 if last.state in MEASURED else 2 * (last.number // 2 + 1)


def _next_trial(trials: Sequence[TrialRecord]) -> int:
    return max((record.number for record in trials), default=-1) + 1


def _began(trials: Sequence[TrialRecord], now: float) -> float:
    return min((record.window.start.timestamp() for record in trials if record.window), default=now)
