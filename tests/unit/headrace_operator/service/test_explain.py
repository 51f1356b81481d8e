"""Who set a knob, and when."""

from datetime import UTC, datetime

from operator_resources import service

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.rollout.revisions import ActiveRevision, RevisionState
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.explain import explain_config, manager_of

SEED = {"f:spec": {"f:engine": {"f:config": {"f:seed": {}}}}}
FIELDS = [
    {"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": SEED},
    {"manager": "argo", "time": "2026-02-01T00:00:00Z", "fieldsV1": SEED},
    {"manager": "op", "time": "2026-03-01T00:00:00Z", "subresource": "status", "fieldsV1": SEED},
]


def test_each_knob_has_a_value_a_source_and_a_class() -> None:
    record = ActiveRevision(
        tuning_run="tune",
        run_uid="u",
        state=RevisionState.KEPT,
        knobs={"decode_ratio": 0.5},
        applied_at=datetime(2026, 4, 1, tzinfo=UTC),
    )
    subject = InferenceService.read(
        {**service(engine={"config": {"seed": 3}}), "status": {"config": {"maxModelLen": 8192}}}
    )
    lines = {
        line.knob: line
        for line in explain_config(subject, effective_config(subject, record), active=record, managed_fields=FIELDS)
    }
    assert (lines["seed"].value, lines["seed"].by, lines["seed"].since) == (3, "argo", "2026-02-01T00:00:00Z")
    assert (lines["decodeRatio"].by, lines["decodeRatio"].since) == ("TuningRun tune (Kept)", "2026-04-01T00:00:00Z")
    assert (lines["maxModelLen"].value, lines["maxModelLen"].source) == (8192, "Default")
    assert lines["blockSize"].to_json()["class"] == "restart"


def test_a_field_without_an_owner_has_an_unknown_manager() -> None:
    assert manager_of(("spec", "replicas"), FIELDS) == ("unknown", "")
