"""Percentiles with the number of values that they rest on. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PERCENTILES = (50, 95, 99)


def nearest_rank(values: Sequence[float], percentile: float) -> float:
    """The smallest of `values` that at least `percentile` percent of them do not exceed. Not empty."""
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values)
    # Multiply before dividing: 99 * 200 / 100 is exact where 0.99 * 200 is not.
    rank = max(1, math.ceil(percentile * len(ordered) / 100))
    return ordered[rank - 1]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank percentiles in seconds, and how many values they stand on."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """Percentiles of `values`; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTILES)
    return Distribution(len(ordered), p50, p95, p99, ordered[-1])


def duration(seconds: float) -> str:
    """At most three significant digits: `12.3 ms`, `1.2 s`."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
