"""The objects made from custom resources, as YAML. HEADRACE_REWRITE_GOLDENS=1 rewrites them; then read the diff."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_resources import IMAGES

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.objects import service_objects
from headrace_operator.tuning.job_objects import JobUrls, job_objects
from headrace_operator.tuning.trial_objects import trial_objects

GOLDENS = Path(__file__).parents[3] / "golden" / "desired"
CASES = sorted(path.parent.name for path in GOLDENS.glob("*/cr.yaml"))
URLS = JobUrls(
    trial="http://127.96.0.2:8000",
    trial_admin="http://127.96.0.2:8001",
    service="http://127.96.0.1:8000",
    prometheus="http://127.0.0.1:9090",
)


def objects_of(text: str) -> list[dict[str, Any]]:
    bodies = list(yaml.safe_load_all(text))
    service = InferenceService.parse(bodies[0])
    config = effective_config(service, None).wanted
    made = service_objects(service, config, images=IMAGES, token="service-token")
    if len(bodies) == 1:
        return list(made.objects)
    run = TuningRun.parse(bodies[1])
    revision = made.template_revision
    trial = trial_objects(run, service, config, images=IMAGES, token="trial-token", revision=revision)
    return [*trial, *job_objects(run, URLS, images=IMAGES)]


@pytest.mark.parametrize("case", CASES)
def test_objects_are_as_recorded(case: str) -> None:
    made = objects_of((GOLDENS / case / "cr.yaml").read_text())
    golden = GOLDENS / case / "objects.yaml"
    if os.environ.get("HEADRACE_REWRITE_GOLDENS"):
        golden.write_text(yaml.safe_dump_all(made, sort_keys=False, width=120))
    assert made == list(yaml.safe_load_all(golden.read_text()))


def test_there_are_cases() -> None:
    assert len(CASES) >= 5


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_restricted(case: str) -> None:
    made = objects_of((GOLDENS / case / "cr.yaml").read_text())
    pods = [body["spec"]["template"]["spec"] for body in made if body["kind"] in ("Deployment", "Job")]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
