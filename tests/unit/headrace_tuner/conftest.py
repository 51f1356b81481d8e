"""Makers of the values that a study works with."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def make() -> SimpleNamespace:
    """Makers of the study's values."""
    from headrace_api.v1alpha1.knobs import HotKnobs
    from headrace_api.v1alpha1.records import Measures, TrialRecord, TrialState
    from headrace_api.v1alpha1.tuningrun import Objective
    from headrace_core.evidence.counts import Counts, sum_of
    from headrace_tuner.ladder.objective import StudyGoal
    from headrace_tuner.measure.reading import TrialReading
    from headrace_tuner.study.phases import StudyPlan

    def goal(**more: object) -> StudyGoal:
        return StudyGoal(**{"objective": Objective.GOODPUT, "attainment": 0.9, "thresholds": {"itl": 0.1}} | more)

    def plan(**more: object) -> StudyPlan:
        base = {"goal": goal(), "trials": 6, "duration": None, "blocks": 3, "min_effect": 0.05, "confidence": 0.95}
        return StudyPlan(**base | {"keep_load": False} | more)

    def reading(good: float, *, planned: float = 40.0, seconds: float = 20.0, p95: float = 0.05) -> TrialReading:
        half = Counts(good=good / 2, requests=planned / 2, seconds=seconds / 2, output_tokens=planned * 16)
        return TrialReading(
            counts=sum_of([half, half]), throughput=planned * 32 / seconds,
            p95={"itl": p95}, halves=(half, half),
        )  # fmt: skip

    def trial(number: int, good: float, **knobs: object) -> TrialRecord:
        seen = reading(good)
        state = TrialState.COMPLETE if seen.counts.attainment >= 0.9 else TrialState.INFEASIBLE
        return TrialRecord(
            number=number, state=state, knobs=HotKnobs.of(knobs), score=goal().score(seen),
            attainment=seen.counts.attainment, measures=seen.measures(), constraints=goal().constraints(seen),
        )  # fmt: skip

    def void(number: int, reason: str = "a restart", **knobs: object) -> TrialRecord:
        return TrialRecord(number=number, state=TrialState.VOID, knobs=HotKnobs.of(knobs), reason=reason)

    return SimpleNamespace(goal=goal, plan=plan, reading=reading, trial=trial, void=void, Measures=Measures)
