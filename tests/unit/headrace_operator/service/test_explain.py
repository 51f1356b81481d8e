"""Who set a knob, since when."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from operator_doubles import service, tuning_run
from rich.console import Console

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.cli import explain_table, runs_table, services_table
from headrace_operator.rollout.revisions import ActiveRevision, RevisionState
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.explain import explain_config, manager_of
from headrace_operator.settings import OperatorSettingsError, read_token

SEED = {"f:spec": {"f:engine": {"f:config": {"f:seed": {}}}}}
FIELDS = [
    {"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": SEED},
    {"manager": "argo", "time": "2026-02-01T00:00:00Z", "fieldsV1": SEED},
    {"manager": "op", "time": "2026-03-01T00:00:00Z", "subresource": "status", "fieldsV1": SEED},
]


def text(table: Any) -> str:
    console = Console(width=200, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


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
    shown = text(explain_table("chat", list(lines.values())))
    assert "TuningRun tune (Kept)" in shown
    assert "argo" in shown


def test_an_unowned_field_has_no_known_manager() -> None:
    assert manager_of(("spec", "replicas"), FIELDS) == ("unknown", "")


def test_tables_show_why_something_is_not_ready() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "ModelNotFound", "message": "model [/x] does not exist"}
    shown = text(services_table([{**service(), "status": {"conditions": [condition]}}]))
    assert "ModelNotFound" in shown
    assert "model [/x] does not exist" in shown
    run = {**tuning_run(), "status": {"phase": "Searching", "trials": {"progress": "5/12"}}}
    assert "5/12" in text(runs_table([run]))


def test_the_root_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(tmp_path / "token", "") == "0123456789abcdef"
    with pytest.raises(OperatorSettingsError, match="at least 16"):
        read_token(None, "short")
    with pytest.raises(OperatorSettingsError, match="cannot be read"):
        read_token(tmp_path / "missing", "")
