import itertools
import re
from pathlib import Path

import pytest

from headrace_core import metric_names
from headrace_core.evidence.slo import TARGETS, SloSet
from headrace_core.metric_names import (
    ALL_METRICS,
    COARSE_BUCKETS,
    DECISION_LABELS,
    E2E_BUCKETS,
    FINE_BUCKETS,
    ITERATION_BUCKETS,
    ITL_BUCKETS,
    TOKEN_BUCKETS,
    TTFT_BUCKETS,
    VLLM_LABELS,
    MetricKind,
    buckets_with,
    slo_id,
)

DECIDERS = (
    "clients/headrace_client/window_reader.py", "operator/headrace_operator/rollout/windows.py",
    "tuner/headrace_tuner/measure/reading.py", "tuner/headrace_tuner/targets/shadow.py",
)  # fmt: skip
ROOT = Path(__file__).parents[3]


def test_series_are_unique_and_say_their_prefix() -> None:
    assert len({metric.series for metric in ALL_METRICS}) == len(ALL_METRICS) > 30
    for metric in ALL_METRICS:
        assert metric.name.startswith(("headrace:", "vllm:"))
        assert metric.kind is not MetricKind.COUNTER or not metric.name.endswith("_total"), "the suffix is added"
        assert metric.doc.endswith(".")
        assert len(set(metric.labels)) == len(metric.labels)


def test_counters_are_queried_with_their_suffix() -> None:
    for metric in ALL_METRICS:
        assert metric.kind is not MetricKind.COUNTER or metric.series == f"{metric.name}_total"
        assert metric.kind is MetricKind.COUNTER or metric.series == metric.name


def test_histograms_have_buckets_and_only_they_have() -> None:
    for metric in ALL_METRICS:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert metric.slo in ("", *TARGETS)


def test_what_a_decision_reads_carries_the_config_it_was_taken_under() -> None:
    for metric in ALL_METRICS:
        if metric.name.startswith("headrace:") and metric.kind is not MetricKind.GAUGE:
            assert set(DECISION_LABELS) <= set(metric.labels)


def test_what_a_decision_reads_is_marked_as_such() -> None:
    read: set[str] = set()
    for path in DECIDERS:
        words = re.findall(r"\b([A-Z][A-Z0-9_]+)\b", (ROOT / path).read_text())
        read |= {name for name in words if hasattr(metric_names, name)}
    rows = {name: getattr(metric_names, name) for name in read}
    metrics = {name: row for name, row in rows.items() if isinstance(row, metric_names.Metric)}
    assert {"SLO_GOOD", "TTFT", "WAITING", "CONFIG_INFO"} <= set(metrics)
    assert [name for name, metric in metrics.items() if not metric.decision] == []
    marked = {metric.name for metric in ALL_METRICS if metric.decision}
    assert marked == {metric.name for metric in metrics.values()}, "and nothing else is"


def test_vllm_names_have_the_labels_that_they_have_there() -> None:
    for metric in ALL_METRICS:
        if metric.name.startswith("vllm:"):
            assert metric.labels[:2] == VLLM_LABELS == ("model_name", "engine")
            assert not metric.decision
        else:
            assert not metric.differs


def test_label_values_are_known_where_they_are_few() -> None:
    few = {"finish_reason", "finished_reason", "reason", "kind", "phase", "term", "direction", "state", "source"}
    for metric in ALL_METRICS:
        assert bool(metric.values) == (metric.labels[-1] in few or metric is metric_names.SLO_MISSES)


def test_an_slo_set_has_a_short_id_that_only_its_values_decide() -> None:
    assert slo_id(None) == ""
    assert slo_id(SloSet(ttft_seconds=1)) == slo_id(SloSet(ttft_seconds=1.0)) != slo_id(SloSet(ttft_seconds=2))
    assert slo_id(SloSet(itl_seconds=1)) != slo_id(SloSet(itl_seconds=1, itl_percentile=95))
    assert re.fullmatch("[0-9a-f]{8}", slo_id(SloSet()))
    assert slo_id(SloSet(ttft_seconds=0.8)) == "df77ca58", "it is in people's dashboards: it stays"


@pytest.mark.parametrize(
    "buckets",
    [FINE_BUCKETS, COARSE_BUCKETS, TTFT_BUCKETS, ITL_BUCKETS, E2E_BUCKETS, TOKEN_BUCKETS, ITERATION_BUCKETS],
)
def test_buckets_ascend(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] > 0


def test_fine_buckets_are_fine() -> None:
    assert (FINE_BUCKETS[0], FINE_BUCKETS[-1], len(FINE_BUCKETS)) == (0.001, 100.0, 101)
    assert all(high / low < 1.125 for low, high in itertools.pairwise(FINE_BUCKETS))


def test_vllm_buckets_are_those_of_that_engine() -> None:
    assert TOKEN_BUCKETS[:7] == (1, 2, 5, 10, 20, 50, 100)
    assert ITERATION_BUCKETS == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    assert (TTFT_BUCKETS[0], TTFT_BUCKETS[-1], len(TTFT_BUCKETS)) == (0.001, 2560, 22)
    assert (ITL_BUCKETS[0], ITL_BUCKETS[-1], len(ITL_BUCKETS)) == (0.01, 80, 19)
    assert (E2E_BUCKETS[0], E2E_BUCKETS[-1], len(E2E_BUCKETS)) == (0.3, 7680, 21)


def test_a_threshold_becomes_an_exact_bound() -> None:
    assert buckets_with((0.1, 1.0), 0.8) == (0.1, 0.8, 1.0)
    assert buckets_with((0.1, 1.0), 0.1) == (0.1, 1.0)
    assert buckets_with((0.1, 1.0), None) == (0.1, 1.0)
    assert 0.8 in buckets_with(FINE_BUCKETS, 0.8)
