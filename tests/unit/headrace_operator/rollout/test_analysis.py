"""Two windows compared in a sentence, and the measures of one window in the status."""

import math

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.verdict import judge
from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.analysis import explain_judgement, measures

LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max")


def counts(requests: float, good: float) -> Counts:
    return Counts(seconds=20.0, requests=requests, good=good, output_tokens=10)


def explained(before: Counts, after: Counts) -> str:
    return explain_judgement(judge(before, after, min_requests=50, confidence=0.95), before, after, min_requests=50)


def test_the_message_has_the_numbers() -> None:
    message = explained(counts(80, 40), counts(80, 78))
    assert "attainment 50.0% -> 97.5%" in message
    assert "goodput 2 -> 3.9 requests/s" in message


def test_the_side_with_too_few_requests_is_named() -> None:
    assert explained(counts(80, 40), counts(3, 3)) == "too few requests to decide (need 50): after 3"
    assert explained(counts(2, 0), counts(3, 3)) == "too few requests to decide (need 50): before 2, after 3"


def test_nan_and_infinity_are_left_out_of_the_status() -> None:
    stats = WindowStats(counts=counts(0, 0), **dict.fromkeys(LATENCIES, math.nan))
    assert measures(stats).to_kube() == {
        "goodput": 0.0, "throughput": 0.5, "requests": 0.0, "good": 0.0, "seconds": 20.0, "outputTokens": 10.0,
    }  # fmt: skip


def test_counts_are_kept_as_they_were_counted() -> None:
    seen = Counts(good=1, requests=3, seconds=20.0123456789, output_tokens=7)
    kept = measures(WindowStats(counts=seen, **dict.fromkeys(LATENCIES, 0.1)))
    assert kept.counts() == seen
    assert kept.attainment == 0.333333
