"""From a TuningRun's spec to what the study needs. Pure."""

from __future__ import annotations

from headrace_api.v1alpha1.slo import SloSpec
from headrace_api.v1alpha1.tuningrun import ApplyPolicy, TuningRunSpec
from headrace_api.v1alpha1.workload import WorkloadSpec
from headrace_client.engine import EngineState
from headrace_client.load.client import Endpoint
from headrace_core.evidence.slo import SloSet
from headrace_core.workload.plans import Workload
from headrace_tuner.errors import TunerError
from headrace_tuner.ladder.objective import StudyGoal
from headrace_tuner.study.phases import StudyPlan

TARGETS = ("ttft", "itl", "e2e")  # those whose 95th percentile a reading has


def slo_set(slo: SloSpec) -> SloSet:
    """The thresholds as the engine judges them."""
    return SloSet.from_dict(slo.for_engine())


def study_plan(spec: TuningRunSpec, slo: SloSpec, *, keep_load: bool) -> StudyPlan:
    """The study's plan. `keep_load`: whether a proposal is applied under load."""
    thresholds = slo_set(slo)
    limits = {target: seconds for target in TARGETS if (seconds := thresholds.threshold(target)) is not None}
    return StudyPlan(
        goal=StudyGoal(objective=spec.objective, attainment=slo.attainment, thresholds=limits),
        trials=spec.budget.trials,
        duration=spec.budget.seconds,
        blocks=spec.verification.blocks,
        min_effect=spec.verification.min_effect,
        confidence=spec.verification.confidence,
        keep_load=keep_load and spec.apply is ApplyPolicy.AUTO,
    )


def workload_of(spec: WorkloadSpec) -> Workload:
    """The load in the planner's form."""
    long = spec.prompt_tokens.long
    return Workload(
        rate=spec.rate,
        duration=spec.duration_seconds,
        short_prompt_tokens=spec.prompt_tokens.short.mean,
        long_prompt_tokens=long.mean if long else 0,
        long_share=spec.prompt_tokens.long_share,
        output_tokens=spec.output_tokens.mean,
    )


def check_slo(state: EngineState, slo: SloSpec) -> None:
    """Check that the engine judges requests by the study's SLO. Raises `TunerError`."""
    wanted = slo_set(slo).to_dict()
    if state.slo is None or dict(state.slo) != wanted:
        raise TunerError(
            f"the engine judges requests by the SLO {state.slo}, the study is about {wanted}: start the engine with "
            "that one (slo in engine.json, --config)"
        )


def check_fits(workload: Workload, endpoint: Endpoint) -> None:
    """Check that the longest request fits the model. Raises `TunerError`."""
    if endpoint.max_model_len is not None and workload.longest > endpoint.max_model_len:
        raise TunerError(
            f"spec.workload: a prompt with its output can have {workload.longest} tokens, and {endpoint.model} takes "
            f"{endpoint.max_model_len}: lower promptTokens or outputTokens"
        )
