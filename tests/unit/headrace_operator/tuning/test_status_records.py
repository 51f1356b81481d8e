"""What the status makes of the Job's records, including those that it cannot read."""

from datetime import UTC, datetime
from typing import Any

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.records import RunPhase
from headrace_api.v1alpha1.tuningrun import TuningRun, TuningRunStatus
from headrace_operator.cluster.findings import yes
from headrace_operator.tuning.status import RunObservation, read_records, run_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STUDY = '{"phase": "Searching", "message": "trial 2", "total": 6}'
TRIAL = '{"number": 1, "state": "Failed", "knobs": {"prefillChunkSize": 64}, "score": 1.5}'
RUN = TuningRun.read(
    {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "TuningRun",
        "metadata": {"name": "tune", "namespace": "ns"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "knobs": [{"name": "prefillChunkSize", "min": 32, "max": 256}],
            "budget": {"trials": 6},
            "workload": {"rate": 4, "promptTokens": {"short": {"mean": 32}}, "outputTokens": {"mean": 8}},
        },
    }
)


def status(data: dict[str, str] | None) -> TuningRunStatus:
    body: dict[str, Any] | None = None if data is None else {"data": data}
    fine = yes(Reason.VALID, "")
    seen = RunObservation(
        phase=RunPhase.SEARCHING, message="trial 2", spec=fine, trial=fine, records=read_records(body)
    )  # fmt: skip
    return run_status(RUN, seen, now=NOW)


def test_readable_records_are_counted_and_copied() -> None:
    found = status({"study.json": STUDY, "trial-0001.json": TRIAL})
    assert found.message == "trial 2"
    assert found.trials is not None
    assert (found.trials.done, found.trials.failed, found.trials.progress) == (1, 1, "1/6")
    assert [trial.number for trial in found.trial_log] == [1]


def test_records_that_cannot_be_read_are_named_and_left_out() -> None:
    found = status({"study.json": STUDY, "trial-0001.json": TRIAL, "trial-0002.json": "{", "trial-0003.json": "[]"})
    assert found.message.startswith("trial 2 (2 of the Job's records cannot be read here")
    assert "trial-0002.json: Invalid JSON" in found.message
    assert [trial.number for trial in found.trial_log] == [1]


def test_without_records_the_status_has_no_trials() -> None:
    assert status(None).trials is None
    assert status({}).message == "trial 2"
