"""From the verification's windows to a verdict, in words that say what it stands on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_api.v1alpha1.records import (
    Effect,
    Phase,
    Proposal,
    StudyRecord,
    Verdict,
    VerificationRecord,
)
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.ladder.effect import compare, decide
from headrace_tuner.study.candidates import Records, baseline_of, best_of, pool
from headrace_tuner.study.phases import Conclude, Plan, complete_blocks

Pairs = list[tuple[VerificationRecord, VerificationRecord]]


def progress(plan: Plan, records: Records, *, phase: Phase, message: str) -> StudyRecord:
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


def conclude(plan: Plan, records: Records, action: Conclude) -> StudyRecord:
    """The study's record with its verdict."""
    if action.verdict is not None:
        ended = progress(plan, records, phase=Phase.COMPLETED, message=action.message)
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
    improved = verdict is Verdict.IMPROVED
    message = _explain(plan, verdict, effect, objective=objective, blocks=len(pairs))
    ended = progress(plan, records, phase=Phase.PROPOSED if improved else Phase.COMPLETED, message=message)
    proposal = Proposal(knobs=pairs[0][1].knobs) if improved else None
    return ended.model_copy(update={"verdict": verdict, "effect": effect, "proposal": proposal})


def _objective(plan: Plan, records: Records) -> Objective:
    """Throughput is compared between configs that meet the SLO; a baseline that does not is compared by goodput."""
    baseline = baseline_of(plan.goal, records)
    return plan.goal.objective if baseline is None or baseline.feasible else Objective.GOODPUT


def _verdict(plan: Plan, records: Records, pairs: Pairs, effect: Effect) -> Verdict:
    winner_meets = _attainment(pair[1] for pair in pairs) >= plan.goal.attainment
    feasible = winner_meets or any(item.feasible for item in pool(plan.goal, records.trials))
    verdict = decide(effect, min_effect=plan.min_effect, any_feasible=feasible)
    if verdict is Verdict.IMPROVED and plan.goal.objective is Objective.THROUGHPUT and not winner_meets:
        return Verdict.INCONCLUSIVE
    return verdict


def _attainment(windows: Iterable[VerificationRecord]) -> float:
    halves = [half for item in windows for half in item.halves]
    return sum(half.good for half in halves) / max(1.0, sum(half.requests for half in halves))


def _explain(plan: Plan, verdict: Verdict, effect: Effect, *, objective: Objective, blocks: int) -> str:
    measured = (
        f"{objective.value.lower()} of the winner is {effect.ratio:.2f} times the baseline's ({plan.confidence:.0%} "
        f"interval {effect.low:.2f} to {effect.high:.2f}, {blocks} paired blocks on fresh seeds)"
    )
    match verdict:
        case Verdict.IMPROVED:
            return f"{measured}: better by more than minEffect {plan.min_effect:.0%}"
        case Verdict.KEEP_BASELINE:
            return f"{measured}: a gain of minEffect {plan.min_effect:.0%} is excluded, so the baseline stays"
        case Verdict.NO_FEASIBLE_CONFIG:
            return f"{measured}: not better beyond the noise, and no config met the SLO's attainment"
        case _:
            return f"{measured}: the noise hides whether it is better; raise verification.blocks or workload.duration"
