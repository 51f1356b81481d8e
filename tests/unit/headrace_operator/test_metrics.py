"""The operator's metrics."""

import pytest

from headrace_operator.metrics import Metrics


def test_objects_are_counted_by_state_when_they_are_scraped() -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    services, runs = [ready, ready, {}], [{"status": {"phase": "Searching"}}, {"status": None}]
    metrics = Metrics()
    metrics.watch_objects(lambda: services, lambda: runs)
    metrics.watch_queue(lambda: 3, lambda: 1.5)
    text = metrics.text().decode()
    for line in (
        'headrace_operator_services{ready="True"} 2.0',
        'headrace_operator_services{ready="Unknown"} 1.0',
        'headrace_operator_tuning_runs{phase="Searching"} 1.0',
        'headrace_operator_tuning_runs{phase="Pending"} 1.0',
        "headrace_operator_queue_depth 3.0",
        "headrace_operator_queue_oldest_seconds 1.5",
    ):
        assert line in text
    services.clear()
    assert "headrace_operator_services{" not in metrics.text().decode()


@pytest.mark.parametrize("result", ["ok", "conflict", "bug"])
def test_passes_are_counted_by_result(result: str) -> None:
    metrics = Metrics()
    metrics.reconciles.labels("TuningRun", result).inc()
    assert f'reconciles_total{{kind="TuningRun",result="{result}"}} 1.0' in metrics.text().decode()
