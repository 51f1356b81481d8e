"""What `headrace status` and `headrace explain` print."""

from pathlib import Path
from typing import Any

from operator_resources import service, tuning_run
from rich.console import Console

from headrace_operator.cli import explain_table, runs_table, services_table
from headrace_operator.service.explain import KnobExplanation


def text(table: Any) -> str:
    console = Console(width=200, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


def test_tables_show_why_something_is_not_ready() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "ModelNotFound", "message": "model [/x] does not exist"}
    shown = text(services_table([{**service(), "status": {"conditions": [condition]}}]))
    assert "ModelNotFound" in shown
    assert "model [/x] does not exist" in shown
    run = {**tuning_run(), "status": {"phase": "Searching", "trials": {"progress": "5/12"}}}
    assert "5/12" in text(runs_table([run]))


def test_a_knob_that_is_not_set_is_shown_as_computed_by_default() -> None:
    known = {"since": "", "klass": "hot", "unit": ""}
    lines = [
        KnobExplanation(knob="decodeRatio", value=0.5, source="Tuned", by="TuningRun tune (Kept)", **known),
        KnobExplanation(knob="prefillChunkSize", value=None, source="Default", by="headrace", **known),
    ]
    shown = text(explain_table("chat", lines))
    assert "Tuned: TuningRun tune (Kept)" in shown
    assert "computed" in shown
