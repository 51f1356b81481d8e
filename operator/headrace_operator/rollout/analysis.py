"""Two windows to a verdict: is the service better off than before, and by more than chance? Pure.

Attainment is a proportion: Newcombe's interval of the difference. Goodput is a rate: given the sum of good requests in
two windows, those of the second are binomial, so Wilson's interval of their share, turned into a ratio of rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headrace_api.v1alpha1.records import Measures
from headrace_core.evidence.intervals import Interval, difference, wilson
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


class JudgedOutcome(StrEnum):
    """What two windows say."""

    BETTER = "better"
    NOT_BETTER = "not better"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome, and the numbers behind it in a sentence."""

    outcome: JudgedOutcome
    message: str


def judge(before: WindowStats, after: WindowStats, *, min_requests: int, confidence: float) -> Judgement:
    """Better: attainment or goodput is higher beyond its interval, and the other is not lower beyond its own."""
    few = [
        f"{name} {stats.requests:g}"
        for name, stats in (("before", before), ("after", after))
        if _few(stats, min_requests)
    ]
    if few:
        message = f"too few requests to decide (need {min_requests}): {', '.join(few)}"
        return Judgement(JudgedOutcome.INCONCLUSIVE, message)
    share = difference((before.good, before.requests), (after.good, after.requests), confidence=confidence)
    ratio = rate_ratio(before, after, confidence=confidence)
    message = (
        f"attainment {before.attainment:.1%} -> {after.attainment:.1%} (difference {_percent(share)}), "
        f"goodput {before.goodput:.3g} -> {after.goodput:.3g} requests/s (ratio {_plain(ratio)})"
    )
    worse = share.high < 0 or ratio.high < 1
    if (share.low > 0 or ratio.low > 1) and not worse:
        return Judgement(JudgedOutcome.BETTER, message)
    return Judgement(JudgedOutcome.NOT_BETTER, message)


def rate_ratio(before: WindowStats, after: WindowStats, *, confidence: float) -> Interval:
    """Good requests per second, after over before, with its interval."""
    share = wilson(after.good, before.good + after.good, confidence=confidence)
    if math.isnan(share.estimate):
        return Interval(math.nan, 0.0, math.inf)
    exposure = before.seconds / after.seconds
    low, estimate, high = (_odds(value) * exposure for value in (share.low, share.estimate, share.high))
    return Interval(estimate, low, high)


def measures(stats: WindowStats) -> Measures:
    """A window as the status shows it."""

    def number(value: float) -> float | None:
        return round(value, 6) if math.isfinite(value) else None

    return Measures(
        goodput=number(stats.goodput),
        throughput=number(stats.throughput),
        attainment=number(stats.attainment),
        ttft_p95=number(stats.ttft_p95),
        itl_p95=number(stats.itl_p95),
        itl_p99=number(stats.itl_p99),
        requests=stats.requests,
    )


def _few(stats: WindowStats, minimum: int) -> bool:
    return not (math.isfinite(stats.requests) and math.isfinite(stats.good) and stats.requests >= minimum)


def _odds(share: float) -> float:
    return math.inf if share >= 1 else share / (1 - share)


def _percent(interval: Interval) -> str:
    return f"{interval.estimate:+.1%}, interval {interval.low:+.1%} to {interval.high:+.1%}"


def _plain(interval: Interval) -> str:
    return f"{interval.estimate:.2f}, interval {interval.low:.2f} to {interval.high:.2f}"
