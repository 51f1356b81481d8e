"""The status that is made from what is observed of a service."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_resources import service

from headrace_api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.cluster.findings import no
from headrace_operator.cluster.observe import DeploymentView, PodView
from headrace_operator.engines.base import EngineProbe, RunningEngine
from headrace_operator.engines.headrace import HeadraceEngine
from headrace_operator.rollout.revisions import ActiveRevision, RevisionState
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.readiness import Fleet
from headrace_operator.service.status import ServiceObservation, changed, is_true, service_status, shown_config

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = InferenceService.parse(service())
CONFIG = effective_config(SERVICE, None)
READY = PodView(name="a", uid="a", ip="1.2.3.4", revision="new", ready=True, running=True, phase="Running")
STATE = RunningEngine(
    generation=1,
    revision="c",
    config={"max_model_len": 4096},
    ceilings={},
    slo=None,
    device="cpu",
    pretend_gpu=False,
    started_at=0.0,
)
DEPLOYMENT = DeploymentView(name="d", revision="new", current=True, replicas=1)
IN_FORCE = EngineProbe(state=STATE, in_force=True)


def fleet(*pods: PodView, probe: EngineProbe = IN_FORCE, **more: Any) -> Fleet:
    known = {"replicas": 1, "revision": "new", "engine": HeadraceEngine(), "deployment": DEPLOYMENT}
    return Fleet(pods=pods, probed={pod.uid: probe for pod in pods}, **{**known, **more})


SERVING = fleet(READY)


def seen(subject: Fleet = SERVING, **more: Any) -> ServiceObservation:
    return ServiceObservation(
        **{"fleet": subject, "config": CONFIG, "cluster_ip": "10.0.0.1", "routable": True, **more}
    )


def reasons(observation: ServiceObservation) -> dict[str, tuple[str, str]]:
    made = service_status(SERVICE, observation, now=NOW)
    return {item.type: (item.status.value, item.reason) for item in made.conditions}


OLD = replace(READY, name="o", uid="o", revision="old")
REFUSED = no(Reason.INVALID_CONFIG, "max_num_seqs is odd")

SITUATIONS: dict[str, tuple[ServiceObservation, dict[str, tuple[str, str]]]] = {
    "serves": (
        seen(),
        {
            "SpecValid": ("True", "Valid"),
            "EngineReady": ("True", "EnginesReady"),
            "Ready": ("True", "Serving"),
            "Progressing": ("False", "UpToDate"),
        },
    ),
    "no route yet": (
        seen(routable=False),
        {"EngineReady": ("True", "EnginesReady"), "Ready": ("False", "NotRoutable")},
    ),
    "rolls out": (
        seen(fleet(OLD)),
        {"Ready": ("False", "PodsPending"), "Progressing": ("True", "RollingOut")},
    ),
    "ready, with an old pod still there": (
        seen(fleet(READY, OLD)),
        {"Ready": ("True", "Serving"), "Progressing": ("True", "RollingOut")},
    ),
    "the Deployment is behind": (
        seen(fleet(READY, deployment=replace(DEPLOYMENT, current=False))),
        {"Ready": ("True", "Serving"), "Progressing": ("True", "RollingOut")},
    ),
    "no Deployment": (seen(fleet(READY, deployment=None)), {"Progressing": ("True", "RollingOut")}),
    "too late": (
        seen(fleet(deployment=replace(DEPLOYMENT, deadline_exceeded="timed out"))),
        {"Ready": ("False", "PodsPending"), "Progressing": ("False", "DeadlineExceeded")},
    ),
    "config on its way": (
        seen(fleet(READY, probe=EngineProbe())),
        {"Ready": ("False", "ConfigPending"), "Progressing": ("True", "ApplyingConfig")},
    ),
    "config refused": (
        seen(fleet(READY, probe=EngineProbe(refused="no"))),
        {"EngineReady": ("False", "ConfigRefused"), "Progressing": ("True", "ApplyingConfig")},
    ),
    "spec refused, nothing there": (
        seen(fleet(), config=None, spec_problem=REFUSED, routable=False),
        {
            "SpecValid": ("False", "InvalidConfig"),
            "Ready": ("False", "SpecNotValid"),
            "Progressing": ("False", "WaitingForSpec"),
        },
    ),
    "spec refused, engines serve": (
        seen(config=None, spec_problem=REFUSED),
        {"EngineReady": ("True", "EnginesReady"), "Ready": ("False", "SpecNotValid")},
    ),
    "a name is taken": (
        seen(conflict="Service chat belongs to someone else"),
        {"EngineReady": ("False", "NameTaken"), "Ready": ("False", "NameTaken")},
    ),
    "a write failed": (seen(api_error="quota"), {"Ready": ("True", "Serving"), "Progressing": ("False", "APIError")}),
    "asleep": (
        seen(fleet(replicas=0, deployment=replace(DEPLOYMENT, replicas=0))),
        {"Ready": ("False", "ScaledToZero"), "Progressing": ("False", "UpToDate")},
    ),
}


@pytest.mark.parametrize("case", SITUATIONS)
def test_situations_and_their_conditions(case: str) -> None:
    observation, expected = SITUATIONS[case]
    found = reasons(observation)
    assert set(found) == {"SpecValid", "EngineReady", "Ready", "Progressing"}
    assert {type_: found[type_] for type_ in expected} == expected


def test_pods_that_keep_serving_under_a_refused_spec_are_mentioned() -> None:
    made = service_status(SERVICE, seen(config=None, spec_problem=REFUSED), now=NOW)
    ready = next(item for item in made.conditions if item.type == "Ready")
    assert ready.message == "max_num_seqs is odd; 1 pods of the last valid spec keep serving"


def test_a_refused_spec_keeps_what_was_last_in_force() -> None:
    before = service_status(SERVICE, seen(), now=NOW)
    with_status = SERVICE.model_copy(update={"status": before})
    after = service_status(with_status, seen(config=None, spec_problem=REFUSED, cluster_ip=""), now=NOW)
    assert (after.config, after.revision, after.template_revision) == (before.config, before.revision, "new")
    assert after.endpoint == before.endpoint


def test_the_same_observation_gives_the_same_status() -> None:
    before = service_status(SERVICE, seen(), now=NOW)
    later = SERVICE.model_copy(update={"status": before})
    assert service_status(later, seen(), now=NOW + timedelta(hours=1)) == before


def test_counts_and_the_endpoint() -> None:
    pods = (
        READY,
        replace(OLD, ready=False),
        replace(READY, uid="t", terminating=True),
        replace(READY, uid="f", phase="Failed"),
    )
    made = service_status(SERVICE, seen(fleet(*pods), cluster_ip="fd00::1"), now=NOW)
    assert (made.replicas, made.ready_replicas) == (2, 1)
    assert made.endpoint is not None
    assert made.endpoint.url == "http://[fd00::1]:8000"
    assert service_status(SERVICE, seen(cluster_ip=""), now=NOW).endpoint is None


def test_the_proposal_in_force_is_shown() -> None:
    active = ActiveRevision(
        tuning_run="tune", run_uid="u", state=RevisionState.KEPT, knobs={"decode_ratio": 0.5}, applied_at=NOW
    )
    made = service_status(SERVICE, seen(active=active), now=NOW)
    assert made.tuned is not None
    assert made.tuned.tuning_run == "tune"
    assert service_status(SERVICE.model_copy(update={"status": made}), seen(), now=NOW).tuned is None


@pytest.mark.parametrize(
    ("engine", "length", "budget"),
    [(None, None, 256), (STATE, 4096, 256), (replace(STATE, device="cuda"), 4096, 2048)],
)
def test_what_an_engine_computes_is_shown_once_one_is_up(
    engine: RunningEngine | None, length: int | None, budget: int
) -> None:
    values = shown_config(CONFIG.wanted, engine).values()
    assert (values.get("max_model_len"), values["max_num_batched_tokens"]) == (length, budget)
    assert values["prefill_chunk_size"] == budget


def condition(status: str, reason: str, type_: str = "Ready", message: str = "m") -> Condition:
    return Condition(
        type=type_, status=ConditionStatus(status), reason=reason, message=message, last_transition_time=NOW
    )


@pytest.mark.parametrize(
    ("new", "posted"),
    [
        (condition("True", "Serving"), False),
        (condition("True", "Serving", message="other words"), False),
        (condition("False", "Serving"), True),
        (condition("True", "Other"), True),
        (condition("True", "Serving", "EngineReady"), True),
    ],
)
def test_a_new_status_or_reason_is_worth_an_event_a_new_message_is_not(new: Condition, posted: bool) -> None:
    assert changed([condition("True", "Serving")], [new]) == ([new] if posted else [])


@pytest.mark.parametrize(("status", "holds"), [("True", True), ("False", False), ("Unknown", False)])
def test_only_true_is_true(status: str, holds: bool) -> None:
    assert is_true([condition(status, "x")], ConditionType.READY) is holds
    assert not is_true([condition(status, "x")], ConditionType.APPLIED)
