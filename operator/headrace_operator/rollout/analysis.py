"""The outcomes of reading a window, and the comparison of two in a sentence. Pure; the statistics are core's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace_api.v1alpha1.records import Measures
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.intervals import Interval
from headrace_core.evidence.verdict import JudgedOutcome, Judgement, enough
from headrace_core.evidence.windows import WindowStats


@dataclass(frozen=True, slots=True)
class WindowMeasured:
    """The window was read."""

    stats: WindowStats


@dataclass(frozen=True, slots=True)
class WindowPending:
    """A scrape at or after the window's end is still to come."""

    why: str


@dataclass(frozen=True, slots=True)
class WindowVoid:
    """The window can never be read."""

    why: str


WindowReading = WindowMeasured | WindowPending | WindowVoid


def explain_judgement(judgement: Judgement, before: Counts, after: Counts, *, min_requests: int) -> str:
    """The numbers behind a judgement, in a sentence."""
    if judgement.outcome is JudgedOutcome.INCONCLUSIVE:
        few = [
            f"{name} {counts.requests:g}"
            for name, counts in (("before", before), ("after", after))
            if not enough(counts, min_requests)
        ]
        return f"too few requests to decide (need {min_requests}): {', '.join(few)}"
    return (
        f"attainment {before.attainment:.1%} -> {after.attainment:.1%} (difference {_percent(judgement.attainment)}), "
        f"goodput {before.goodput:.3g} -> {after.goodput:.3g} requests/s (ratio {_plain(judgement.goodput)})"
    )


def measures(stats: WindowStats) -> Measures:
    """A window as the status shows it: rates and latencies rounded for people, counts as they are."""

    def number(value: float) -> float | None:
        return round(value, 6) if math.isfinite(value) else None

    counts = stats.counts
    return Measures(
        goodput=number(counts.goodput),
        throughput=number(counts.throughput),
        attainment=number(counts.attainment),
        ttft_p95=number(stats.ttft_p95),
        itl_p95=number(stats.itl_p95),
        itl_p99=number(stats.itl_p99),
        requests=counts.requests,
        good=counts.good,
        seconds=counts.seconds,
        output_tokens=counts.output_tokens,
    )


def _percent(interval: Interval) -> str:
    return f"{interval.estimate:+.1%}, interval {interval.low:+.1%} to {interval.high:+.1%}"


def _plain(interval: Interval) -> str:
    return f"{interval.estimate:.2f}, interval {interval.low:.2f} to {interval.high:.2f}"
