"""From the verification's windows to a verdict, in words that say what it stands on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_api.v1alpha1.records import (
    Effect,
    Proposal,
    RunPhase,
    StudyRecord,
    StudyVerdict,
    VerificationRecord,
)
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.ladder.effect import compare, decide
from headrace_tuner.study.candidates import StudyRecords, baseline_of, best_of, pool
from headrace_tuner.study.phases import Conclude, StudyPlan, complete_blocks

Pairs = list[tuple[VerificationRecord, VerificationRecord]]


def progress(plan: StudyPlan, records: StudyRecords, *, phase: RunPhase, message: str) -> StudyRecord:
    """The study's record while it goes on."""
    best, baseline = best_of(plan.goal, records.trials), baseline_of(plan.goal, records)
    spans = [item.window for item in records.trials if item.window is not None]
    spans += [item.window for item in records.windows if item.window is not None]
    return StudyRecord(
        phase=phase,
        message=message,
        total=plan.trials,
        baseline=baseline.candidate if baseline else records.baseline,
        best=best.candidate if best else None,
        window=max(spans, key=lambda span: span.end, default=None),
    )


def conclude(plan: StudyPlan, records: StudyRecords, action: Conclude) -> StudyRecord:
    """The study's record with its verdict."""
    if action.verdict is not None:
        ended = progress(plan, records, phase=RunPhase.COMPLETED, message=action.message)
        return ended.model_copy(update={"verdict": action.verdict})
    pairs = complete_blocks(records.windows)
    objective = _objective(plan, records)
    effect = compare(
        [pair[0].halves for pair in pairs],
        [pair[1].halves for pair in pairs],
        objective=objective,
        confidence=plan.confidence,
    )
    verdict = _verdict(plan, records, pairs, effect)
    improved = verdict is StudyVerdict.IMPROVED
    message = _explain(plan, verdict, effect, objective=objective, blocks=len(pairs))
    ended = progress(plan, records, phase=RunPhase.PROPOSED if improved else RunPhase.COMPLETED, message=message)
    proposal = Proposal(knobs=pairs[0][1].knobs) if improved else None
    return ended.model_copy(update={"verdict": verdict, "effect": effect, "proposal": proposal})


def _objective(plan: StudyPlan, records: StudyRecords) -> Objective:
    """Throughput is compared between configs that meet the SLO; a baseline that does not is compared by goodput."""
    baseline = baseline_of(plan.goal, records)
    return plan.goal.objective if baseline is None or baseline.feasible else Objective.GOODPUT


def _verdict(plan: StudyPlan, records: StudyRecords, pairs: Pairs, effect: Effect) -> StudyVerdict:
    winner_meets = _attainment(pair[1] for pair in pairs) >= plan.goal.attainment
    feasible = winner_meets or any(item.feasible for item in pool(plan.goal, records.trials))
    verdict = decide(effect, min_effect=plan.min_effect, any_feasible=feasible)
    if verdict is StudyVerdict.IMPROVED and plan.goal.objective is Objective.THROUGHPUT and not winner_meets:
        return StudyVerdict.INCONCLUSIVE
    return verdict


def _attainment(windows: Iterable[VerificationRecord]) -> float:
    halves = [half for item in windows for half in item.halves]
    return sum(half.good for half in halves) / max(1.0, sum(half.requests for half in halves))


def _explain(plan: StudyPlan, verdict: StudyVerdict, effect: Effect, *, objective: Objective, blocks: int) -> str:
    measured = (
        f"{objective.value.lower()} of the winner is {effect.ratio:.2f} times the baseline's ({plan.confidence:.0%} "
        f"interval {effect.low:.2f} to {effect.high:.2f}, {blocks} paired blocks on fresh seeds)"
    )
    match verdict:
        case StudyVerdict.IMPROVED:
            return f"{measured}: better by more than minEffect {plan.min_effect:.0%}"
        case StudyVerdict.KEEP_BASELINE:
            return f"{measured}: a gain of minEffect {plan.min_effect:.0%} is excluded, so the baseline stays"
        case StudyVerdict.NO_FEASIBLE_CONFIG:
            return f"{measured}: not better beyond the noise, and no config met the SLO's attainment"
        case _:
            return f"{measured}: the noise hides whether it is better; raise verification.blocks or workload.duration"
