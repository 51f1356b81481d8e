"""The trial copies the service, and production never reaches it."""

import json
from typing import Any

import pytest
from operator_resources import IMAGES, service, tuning_run

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.objects import service_objects
from headrace_operator.tuning.trial_objects import trial_objects

SLO = {"ttft": {"threshold": "1s"}}


def made(run: dict[str, Any], **spec: Any) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The objects of the service and those of its trial, each by kind."""
    subject = InferenceService.parse(service(**spec))
    wanted = effective_config(subject, None).wanted
    own = service_objects(subject, wanted, images=IMAGES, token="s")
    trial = trial_objects(
        TuningRun.parse(tuning_run(**run)), subject, wanted, images=IMAGES, token="t", revision=own.template_revision
    )
    return {body["kind"]: body for body in own.objects}, {body["kind"]: body for body in trial}


def test_one_pod_runs_what_the_service_runs() -> None:
    own, trial = made({}, replicas=3, resources={"gpu": {"count": 1}})
    assert trial["Deployment"]["spec"]["replicas"] == 1
    theirs, ours = (objects["Deployment"]["spec"]["template"]["spec"]["containers"][0] for objects in (own, trial))
    for part in ("command", "image", "resources", "startupProbe", "ports"):
        assert ours[part] == theirs[part]


def test_no_stable_selector_matches_the_trial() -> None:
    own, trial = made({})
    labels = trial["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selector = own["Service"]["spec"]["selector"]
    assert not selector.items() <= labels.items()
    assert trial["Service"]["spec"]["selector"].items() <= labels.items()
    assert (
        labels[names.REVISION_LABEL]
        == own["Deployment"]["spec"]["template"]["metadata"]["labels"][names.REVISION_LABEL]
    )


@pytest.mark.parametrize(
    ("run", "spec", "ttft"),
    [
        ({}, {"slo": SLO}, 1.0),
        ({"slo": {"ttft": {"threshold": "2s"}}}, {"slo": SLO}, 2.0),
        ({"slo": SLO}, {}, 1.0),
        ({}, {}, None),
    ],
)
def test_the_trial_is_measured_by_the_runs_slo_or_the_services(
    run: dict[str, Any], spec: dict[str, Any], ttft: float | None
) -> None:
    _, trial = made(run, engine={"config": {"decodeRatio": 0.5}}, **spec)
    content = json.loads(trial["ConfigMap"]["data"]["engine.json"])
    assert (content["slo"] or {}).get("ttft_seconds") == ttft
    assert content["config"] == {"decode_ratio": 0.5}
