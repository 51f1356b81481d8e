import math

import pytest

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import (
    VoidKind,
    WindowVoidError,
    bucket_deltas,
    delta,
    histogram_quantile,
    max_bucket,
    merge_buckets,
    sum_deltas,
    window_stats,
)

INF = math.inf
LATENCY = {0.1: 10.0, 0.2: 60.0, 0.4: 90.0, INF: 100.0}


def test_delta() -> None:
    assert delta(3, 10) == 7
    assert delta(None, 4) == 4, "born inside the window: started at 0"
    assert delta(None, None) == 0


@pytest.mark.parametrize(
    ("before", "after", "kind", "why"),
    [
        (5, 4, VoidKind.RESTARTED, "fell from 5 to 4"),
        (5, None, VoidKind.RESTARTED, "vanished"),
        (1, math.nan, VoidKind.MALFORMED, "not a count"),
        (math.inf, math.inf, VoidKind.MALFORMED, "not a"),
    ],
)
def test_a_broken_counter_voids_the_window(before: float, after: float | None, kind: VoidKind, why: str) -> None:
    with pytest.raises(WindowVoidError, match=why) as caught:
        delta(before, after, name="headrace:x_total")
    assert caught.value.kind is kind


def test_sum_deltas_over_label_sets() -> None:
    assert sum_deltas({"a": 1.0, "b": 5.0}, {"a": 4.0, "b": 5.0, "c": 2.0}) == 5
    with pytest.raises(WindowVoidError, match="b"):
        sum_deltas({"a": 1.0, "b": 5.0}, {"a": 4.0})


def test_bucket_deltas_are_sorted_and_checked() -> None:
    grown = bucket_deltas({INF: 4.0, 0.1: 1.0}, {0.1: 3.0, INF: 9.0})
    assert list(grown.items()) == [(0.1, 2.0), (INF, 5.0)]
    assert bucket_deltas(None, {0.1: 3.0, INF: 9.0}) == {0.1: 3.0, INF: 9.0}
    assert bucket_deltas(None, None) == {}
    with pytest.raises(WindowVoidError, match="bounds changed"):
        bucket_deltas({0.1: 1.0, INF: 1.0}, {0.2: 1.0, INF: 1.0})
    with pytest.raises(WindowVoidError, match="less than the bound below"):
        bucket_deltas({0.1: 0.0, INF: 2.0}, {0.1: 5.0, INF: 5.0})
    with pytest.raises(WindowVoidError, match="fell"):
        bucket_deltas({0.1: 5.0, INF: 5.0}, {0.1: 1.0, INF: 1.0})


def test_merge_buckets() -> None:
    assert merge_buckets([{0.1: 1.0, INF: 2.0}, {}, {0.1: 3.0, INF: 3.0}]) == {0.1: 4.0, INF: 5.0}
    assert merge_buckets([]) == {}
    with pytest.raises(WindowVoidError, match="different bucket bounds"):
        merge_buckets([{0.1: 1.0, INF: 2.0}, {0.2: 1.0, INF: 2.0}])


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0, 0), (0.05, 0.05), (0.1, 0.1), (0.35, 0.15), (0.6, 0.2), (0.75, 0.3), (0.95, 0.4)]
)
def test_quantile_interpolates_inside_the_bucket(quantile: float, expected: float) -> None:
    assert histogram_quantile(quantile, LATENCY) == pytest.approx(expected)


def test_quantile_of_nothing_is_nan() -> None:
    assert math.isnan(histogram_quantile(0.5, {}))
    assert math.isnan(histogram_quantile(0.5, {0.1: 0.0, INF: 0.0}))
    assert math.isnan(histogram_quantile(0.5, {INF: 3.0}))
    assert math.isnan(histogram_quantile(0.5, {0.1: 3.0})), "without the infinite bucket the total is unknown"
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram_quantile(1.5, LATENCY)


def test_quantile_skips_empty_buckets() -> None:
    assert histogram_quantile(0.5, {0.1: 0.0, 0.2: 0.0, 0.4: 10.0, INF: 10.0}) == pytest.approx(0.3)
    assert histogram_quantile(0.0, {0.1: 0.0, 0.2: 10.0, INF: 10.0}) == 0.1
    assert histogram_quantile(0.5, {-1.0: 5.0, INF: 5.0}) == -1.0


def test_max_bucket() -> None:
    assert max_bucket(LATENCY) == INF
    assert max_bucket({0.1: 1.0, 0.2: 2.0, 0.4: 2.0, INF: 2.0}) == 0.2
    assert math.isnan(max_bucket({0.1: 0.0, INF: 0.0}))


def test_window_stats() -> None:
    counts = Counts(seconds=20, requests=100, good=90, output_tokens=6400)
    stats = window_stats(counts, ttft=LATENCY, itl={})
    assert stats.counts == counts
    assert stats.ttft_p50 == pytest.approx(0.18)
    assert (stats.ttft_p95, stats.ttft_p99) == (0.4, 0.4)
    assert math.isnan(stats.itl_p99)
    exported = stats.to_dict()
    assert (exported["good"], exported["goodput"], exported["itl_p99"], exported["itl_max"]) == (90, 4.5, None, None)


def test_an_idle_window_has_no_attainment() -> None:
    stats = window_stats(Counts(seconds=1, requests=0, good=0), ttft={}, itl={})
    assert stats.to_dict()["attainment"] is None
    assert stats.counts.goodput == 0


@pytest.mark.parametrize(("seconds", "good"), [(0, 1), (math.nan, 1), (-1, 1), (1, 3), (1, -1)])
def test_impossible_windows(seconds: float, good: float) -> None:
    with pytest.raises(WindowVoidError) as caught:
        window_stats(Counts(seconds=seconds, requests=2, good=good), ttft={}, itl={})
    assert caught.value.kind is VoidKind.MALFORMED
