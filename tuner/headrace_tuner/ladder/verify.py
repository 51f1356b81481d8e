"""The last rung: from paired windows on fresh seeds to a verdict, in words that say what it stands on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace_api.v1alpha1.records import Effect, StudyVerdict, VerificationRecord
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.ladder.effect import compare, decide
from headrace_tuner.ladder.objective import StudyGoal
from headrace_tuner.ladder.trials import MEASURED, StudyRecords, baseline_of, pool

Pairs = list[tuple[VerificationRecord, VerificationRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """What the verification found, and why, in a sentence."""

    verdict: StudyVerdict
    effect: Effect
    message: str


def verify(goal: StudyGoal, records: StudyRecords, *, min_effect: float, confidence: float) -> VerificationResult:
    """Compare the windows of the complete blocks. Raises `ValueError` for fewer than two."""
    pairs = complete_blocks(records.windows)
    objective = _objective(goal, records)
    effect = compare(
        [pair[0].halves for pair in pairs],
        [pair[1].halves for pair in pairs],
        objective=objective,
        confidence=confidence,
    )
    verdict = _verdict(goal, records, pairs, effect, min_effect)
    numbers = (
        f"{objective.value.lower()} of the winner is {effect.ratio:.2f} times the baseline's ({confidence:.0%} "
        f"interval {effect.low:.2f} to {effect.high:.2f}, {len(pairs)} paired blocks on fresh seeds)"
    )
    return VerificationResult(verdict=verdict, effect=effect, message=f"{numbers}: {_meaning(verdict, min_effect)}")


def complete_blocks(windows: Iterable[VerificationRecord]) -> Pairs:
    """Blocks of which both windows count, each as (baseline, winner)."""
    found: dict[int, dict[bool, VerificationRecord]] = {}
    for item in windows:
        if item.state in MEASURED:
            found.setdefault(item.number // 2, {})[item.winner] = item
    return [(pair[False], pair[True]) for _, pair in sorted(found.items()) if len(pair) == 2]


def _objective(goal: StudyGoal, records: StudyRecords) -> Objective:
    """Throughput is compared between configs that meet the SLO; a baseline that does not is compared by goodput."""
    baseline = baseline_of(goal, records)
    return goal.objective if baseline is None or baseline.feasible else Objective.GOODPUT


def _verdict(
    goal: StudyGoal, records: StudyRecords, pairs: Pairs, effect: Effect, min_effect: float
) -> StudyVerdict:  # fmt: skip
    winner_meets = _attainment(pair[1] for pair in pairs) >= goal.attainment
    feasible = winner_meets or any(item.feasible for item in pool(goal, records.trials))
    verdict = decide(effect, min_effect=min_effect, any_feasible=feasible)
    if verdict is StudyVerdict.IMPROVED and goal.objective is Objective.THROUGHPUT and not winner_meets:
        return StudyVerdict.INCONCLUSIVE
    return verdict


def _attainment(windows: Iterable[VerificationRecord]) -> float:
    halves = [half for item in windows for half in item.halves]
    return sum(half.good for half in halves) / max(1.0, sum(half.requests for half in halves))


def _meaning(verdict: StudyVerdict, min_effect: float) -> str:
    match verdict:
        case StudyVerdict.IMPROVED:
            return f"better by more than minEffect {min_effect:.0%}"
        case StudyVerdict.KEEP_BASELINE:
            return f"a gain of minEffect {min_effect:.0%} is excluded, so the baseline stays"
        case StudyVerdict.NO_FEASIBLE_CONFIG:
            return "not better beyond the noise, and no config met the SLO's attainment"
        case _:
            return "the noise hides whether it is better; raise verification.blocks or workload.duration"
