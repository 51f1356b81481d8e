import math

import pytest

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.windows import combined

LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max")


def stats(requests: float, good: float, *, seconds: float = 20.0, latency: float = 0.1) -> WindowStats:
    counts = Counts(seconds=seconds, requests=requests, good=good, output_tokens=10)
    return WindowStats(counts=counts, **dict.fromkeys(LATENCIES, latency))


def test_pods_together_add_up_and_show_the_worst_latency() -> None:
    both = combined([stats(10, 5, latency=0.1), stats(30, 30, seconds=22, latency=math.nan), stats(1, 1, latency=0.3)])
    assert (both.counts.requests, both.counts.good, both.ttft_p95) == (41, 36, 0.3)
    assert both.counts.seconds == pytest.approx(62 / 3)


def test_a_latency_that_no_pod_has_stays_unknown() -> None:
    assert math.isnan(combined([stats(0, 0, latency=math.nan)] * 2).itl_p99)
