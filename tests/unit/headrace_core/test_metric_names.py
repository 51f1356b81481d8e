import itertools

import pytest

from headrace_core.metric_names import (
    ALL_METRICS,
    DECISION_LABELS,
    E2E_BUCKETS,
    FINE_BUCKETS,
    ITL_BUCKETS,
    TTFT_BUCKETS,
    MetricKind,
    buckets_with,
)
from headrace_core.slo import TARGETS


def test_series_are_unique_and_say_their_prefix() -> None:
    assert len({metric.series for metric in ALL_METRICS}) == len(ALL_METRICS) > 30
    for metric in ALL_METRICS:
        assert metric.name.startswith(("headrace:", "vllm:"))
        assert not metric.name.endswith("_total"), "the suffix is added"
        assert metric.doc.endswith(".")
        assert len(set(metric.labels)) == len(metric.labels)


def test_counters_are_queried_with_their_suffix() -> None:
    for metric in ALL_METRICS:
        assert metric.series.endswith("_total") == (metric.kind is MetricKind.COUNTER)


def test_histograms_have_buckets_and_only_they_have() -> None:
    for metric in ALL_METRICS:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert metric.slo in ("", *TARGETS)


def test_what_a_decision_reads_carries_the_config_it_was_taken_under() -> None:
    for metric in ALL_METRICS:
        if metric.name.startswith("headrace:") and metric.kind is not MetricKind.GAUGE:
            assert set(DECISION_LABELS) <= set(metric.labels)


@pytest.mark.parametrize("buckets", [FINE_BUCKETS, TTFT_BUCKETS, ITL_BUCKETS, E2E_BUCKETS])
def test_buckets_ascend(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] > 0


def test_fine_buckets_are_fine() -> None:
    assert (FINE_BUCKETS[0], FINE_BUCKETS[-1], len(FINE_BUCKETS)) == (0.001, 100.0, 101)
    assert all(high / low < 1.125 for low, high in itertools.pairwise(FINE_BUCKETS))


def test_a_threshold_becomes_an_exact_bound() -> None:
    assert buckets_with((0.1, 1.0), 0.8) == (0.1, 0.8, 1.0)
    assert buckets_with((0.1, 1.0), 0.1) == (0.1, 1.0)
    assert buckets_with((0.1, 1.0), None) == (0.1, 1.0)
    assert 0.8 in buckets_with(FINE_BUCKETS, 0.8)
