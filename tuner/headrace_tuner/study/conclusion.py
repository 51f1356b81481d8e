"""The study's own record: its progress and its outcome. Pure."""

from __future__ import annotations

from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import (
    Proposal,
    RunPhase,
    StudyRecord,
    StudyVerdict,
)
from headrace_tuner.ladder.trials import baseline_of, best_of
from headrace_tuner.ladder.verify import complete_blocks, verify
from headrace_tuner.study.phases import Conclude, StudyPlan


def progress(plan: StudyPlan, records: StudyRecords, *, phase: RunPhase, message: str) -> StudyRecord:
    """The study's record while it runs."""
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
    found = verify(plan.goal, records, min_effect=plan.min_effect, confidence=plan.confidence)
    improved = found.verdict is StudyVerdict.IMPROVED
    phase = RunPhase.PROPOSED if improved else RunPhase.COMPLETED
    ended = progress(plan, records, phase=phase, message=found.message)
    proposal = Proposal(knobs=complete_blocks(records.windows)[0][1].knobs) if improved else None
    return ended.model_copy(update={"verdict": found.verdict, "effect": found.effect, "proposal": proposal})
