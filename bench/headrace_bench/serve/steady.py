"""Whether a load was in a steady state: slopes of the requests under way and of TTFT over the window. Pure.

Over ten slices of the window, a line is laid through the mean number of requests under way, and one through the median
TTFT of what arrived in the slice. Both rising beyond chance, and by more than a little, means that the queue grows: the
latencies then reflect the length of the window, not the speed of the server.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from headrace_client.load.client import RequestRecord
from headrace_core.evidence.means import t_quantile

SLICES = 10
FEWEST = 3 * SLICES
WORTH = 0.25  # a rise over the window below this share of the mean is ignored


class Trend(StrEnum):
    """Whether the load was steady in the window."""

    STEADY = "steady"
    OVERLOADED = "overloaded"
    WARMING = "warming_up"
    UNKNOWN = "too_few_requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """`in_flight` and `ttft` are relative changes over the window along their lines; None if unknown."""

    trend: Trend
    in_flight: float | None = None
    ttft: float | None = None
    mean_in_flight: float | None = None


def steadiness(records: Sequence[RequestRecord], *, begin: float, end: float) -> Steadiness:
    """Judge the window from `begin` to `end`, seconds; `records` may reach beyond it on both sides."""
    inside = [record for record in records if begin <= record.planned_at < end]
    if len(inside) < FEWEST or end <= begin:
        return Steadiness(trend=Trend.UNKNOWN)
    edges = [begin + (end - begin) * at / SLICES for at in range(SLICES + 1)]
    slices = list(pairwise(edges))
    under_way = [_mean_in_flight(records, low, high) for low, high in slices]
    ttfts = [_median_wait(inside, low, high) for low, high in slices]
    flying, waiting = _rise(under_way), _rise(ttfts)
    rises = [rise for rise in (flying, waiting) if rise is not None]
    trend = Trend.STEADY
    if len(rises) == 2 and all(rise > WORTH for rise in rises):
        trend = Trend.OVERLOADED
    elif len(rises) == 2 and all(rise < -WORTH for rise in rises):
        trend = Trend.WARMING
    return Steadiness(trend=trend, in_flight=flying, ttft=waiting, mean_in_flight=statistics.fmean(under_way))


def _mean_in_flight(records: Sequence[RequestRecord], low: float, high: float) -> float:
    overlaps = (min(high, _ended(record)) - max(low, record.planned_at) for record in records)
    return math.fsum(max(0.0, overlap) for overlap in overlaps) / (high - low)


def _ended(record: RequestRecord) -> float:
    if record.e2e is not None:
        return record.planned_at + record.e2e
    if record.error and record.ttft is None and record.error.startswith("http_"):
        return record.planned_at  # refused
    return math.inf if record.error == "unfinished" else record.planned_at + (record.ttft or 0.0)


def _median_wait(records: Sequence[RequestRecord], low: float, high: float) -> float | None:
    found = [record.ttft for record in records if low <= record.planned_at < high and record.ttft is not None]
    return statistics.median(found) if found else None


def _rise(values: Sequence[float | None]) -> float | None:
    """Change along a line through all values, relative to their mean; 0.0 if chance alone could make it; None: gaps."""
    known = [value for value in values if value is not None]
    if len(known) < SLICES or not (mean := statistics.fmean(known)):
        return None
    at = range(SLICES)
    slope, base = statistics.linear_regression(at, known)
    left = math.fsum((value - base - slope * place) ** 2 for place, value in zip(at, known, strict=True))
    spread = math.fsum((place - statistics.fmean(at)) ** 2 for place in at)
    error = math.sqrt(left / (SLICES - 2) / spread)
    return slope * (SLICES - 1) / mean if abs(slope) > t_quantile(0.975, SLICES - 2) * error else 0.0
