"""Makes an InferenceService's new status from what is observed. Pure; equal observations give equal statuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headrace_api import names
from headrace_api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason, merge_conditions
from headrace_api.v1alpha1.inferenceservice import (
    InferenceService,
    InferenceServiceStatus,
    ServiceEndpoint,
)
from headrace_api.v1alpha1.knobs import EngineKnobs
from headrace_operator.cluster.findings import Finding, no, yes
from headrace_operator.engines.base import RunningEngine, WantedConfig
from headrace_operator.rollout.revisions import ActiveRevision
from headrace_operator.service.effective_config import EffectiveConfig
from headrace_operator.service.readiness import Fleet, devices, engines_ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObservation:
    """Everything that a service's status is made of."""

    fleet: Fleet
    config: EffectiveConfig | None = None  # None: the spec is not valid
    spec_problem: Finding | None = None
    conflict: str = ""  # the name of a child is taken by another owner's object
    api_error: str = ""
    cluster_ip: str = ""
    routable: bool = False  # a token came through the Service, from an engine of this revision
    route_problem: str = ""
    active: ActiveRevision | None = None


def service_status(service: InferenceService, seen: ServiceObservation, *, now: datetime) -> InferenceServiceStatus:
    """The new status. If the spec is not valid, it keeps the config that was last in force."""
    old = service.status
    findings = _findings(seen)
    generation = service.metadata.generation or 0
    new = [finding.condition(type_, generation=generation, now=now) for type_, finding in findings.items()]
    known = {
        "observed_generation": generation,
        "conditions": merge_conditions(old.conditions, new),
        "replicas": len(seen.fleet.live),
        "ready_replicas": sum(1 for pod in seen.fleet.live if pod.ready),
        "selector": names.selector_string(names.stable_selector(service.metadata.name)),
        "endpoint": ServiceEndpoint(url=seen.fleet.engine.url(seen.cluster_ip)) if seen.cluster_ip else old.endpoint,
        "tuned": seen.active.status() if seen.active else None,
    }
    if seen.config is not None:
        known |= {
            "template_revision": seen.fleet.revision,
            "config": shown_config(seen.config.wanted, _engine(seen.fleet)),
            "revision": seen.config.wanted.revision,
        }
    return old.model_copy(update=known)


def shown_config(config: WantedConfig, engine: RunningEngine | None) -> EngineKnobs:
    """Every knob's wanted value; what an engine computes is taken from one, and is missing until one is up."""
    full = config.config(engine.device if engine else None)
    wanted = {**full.values(), "prefill_chunk_size": full.chunk}
    computed = engine.config if engine else {}
    return EngineKnobs.of({name: computed.get(name) if value is None else value for name, value in wanted.items()})


def changed(old: Sequence[Condition], new: Sequence[Condition]) -> list[Condition]:
    """Conditions whose status or reason changed, each of which is worth an event."""
    before = {item.type: (item.status, item.reason) for item in old}
    return [item for item in new if before.get(item.type) != (item.status, item.reason)]


def is_true(conditions: Sequence[Condition], type_: ConditionType) -> bool:
    """Whether the condition is there and True."""
    return any(item.type == type_.value and item.status is ConditionStatus.TRUE for item in conditions)


def _engine(fleet: Fleet) -> RunningEngine | None:
    states = (fleet.facts(pod).state for pod in fleet.ready)
    return next((state for state in states if state is not None), None)


def _findings(seen: ServiceObservation) -> dict[ConditionType, Finding]:
    engine = _engine_finding(seen)
    return {
        ConditionType.SPEC_VALID: seen.spec_problem or yes(Reason.VALID, _valid_message(seen.config)),
        ConditionType.ENGINE_READY: engine,
        ConditionType.READY: _ready_finding(seen, engine),
        ConditionType.PROGRESSING: _progress_finding(seen, engine),
    }


def _valid_message(config: EffectiveConfig | None) -> str:
    return config.ignored if config is not None and config.ignored else "every check passed"


def _engine_finding(seen: ServiceObservation) -> Finding:
    if seen.conflict:
        return no(Reason.NAME_TAKEN, seen.conflict)
    return engines_ready(seen.fleet)


def _ready_finding(seen: ServiceObservation, engine: Finding) -> Finding:
    if seen.spec_problem is not None:
        serving = len([pod for pod in seen.fleet.live if pod.ready])
        rest = f"; {serving} pods of the last valid spec keep serving" if serving else ""
        return no(Reason.SPEC_NOT_VALID, seen.spec_problem.message + rest)
    if not engine.holds:
        return no(engine.reason, engine.message)
    if not seen.routable:
        return no(Reason.NOT_ROUTABLE, seen.route_problem or "waiting for a token through the Service")
    where = devices(seen.fleet, on_gpu=seen.config is not None and seen.config.wanted.on_gpu)
    count = f"{len(seen.fleet.ready)} of {seen.fleet.replicas} engines answer"
    return yes(Reason.SERVING, f"{count}, {where}" if where else count)


def _progress_finding(seen: ServiceObservation, engine: Finding) -> Finding:
    if seen.spec_problem is not None:
        return no(Reason.WAITING_FOR_SPEC, "nothing is done until the spec is valid")
    if seen.api_error:
        return no(Reason.API_ERROR, seen.api_error)
    rollout = _rollout_finding(seen.fleet, engine)
    if rollout is not None:
        return rollout
    if engine.reason in (Reason.CONFIG_PENDING, Reason.CONFIG_REFUSED, Reason.ENGINE_UNREACHABLE):
        return yes(Reason.APPLYING_CONFIG, engine.message)
    return no(Reason.UP_TO_DATE, f"revision {seen.fleet.revision} is rolled out")


def _rollout_finding(fleet: Fleet, engine: Finding) -> Finding | None:
    deployment = fleet.deployment
    if deployment is not None and deployment.deadline_exceeded:
        return no(Reason.DEADLINE_EXCEEDED, deployment.deadline_exceeded)
    old = len(fleet.live) - len(fleet.current)
    settled = deployment is not None and deployment.current and deployment.revision == fleet.revision
    if settled and not old and len(fleet.ready) >= fleet.replicas:
        return None
    return yes(Reason.ROLLING_OUT, engine.message)
