"""Differences between two scrapes of Prometheus series. No I/O, no clock.

A window has a value of each series at its start and at its end. A counter that fell, or a series that vanished, makes
the window void: the functions raise `WindowVoidError`, and the caller measures again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

from headrace_core.errors import HeadraceError
from headrace_core.evidence.counts import Counts

Key = TypeVar("Key", bound=Hashable)
Buckets = Mapping[float, float]  # upper bound in seconds (math.inf is the last) -> cumulative count


class VoidKind(StrEnum):
    """Why a window measures nothing."""

    RESTARTED = "restarted"  # the engine's process ended or another took its place
    UNSCRAPED = "unscraped"  # Prometheus has no scrape, or cannot be asked
    MALFORMED = "malformed"  # numbers that are impossible or inconsistent
    DISTURBED = "disturbed"  # something else sent requests, changed the config or added a pod
    BROKEN_ANSWERS = "broken answers"  # requests broke off, though the engine did not end
    CLIENT_LIMIT = "client limit"  # the load generator could not keep its plan


class WindowVoidError(HeadraceError):
    """The window measures nothing. Decisions are made on `kind`; `reason` is for people."""

    def __init__(self, kind: VoidKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def delta(before: float | None, after: float | None, *, name: str = "series") -> float:
    """Growth of one counter. `before` None: born inside the window, so it started at 0; both None: never seen, 0."""
    if after is None:
        if before is None:
            return 0.0
        raise WindowVoidError(
            VoidKind.RESTARTED, f"{name}: the series vanished inside the window; its pod is gone or restarted"
        )
    start = 0.0 if before is None else before
    if not (math.isfinite(start) and math.isfinite(after)):
        raise WindowVoidError(VoidKind.MALFORMED, f"{name}: went from {start} to {after}, which is not a count")
    if after < start:
        raise WindowVoidError(
            VoidKind.RESTARTED,
            f"{name}: fell from {start:g} to {after:g}; the process restarted inside the window",
        )
    return after - start


def sum_deltas(before: Mapping[Key, float], after: Mapping[Key, float], *, name: str = "series") -> float:
    """Growth of a counter over all its label sets (`Key` identifies one)."""
    keys = dict.fromkeys([*before, *after])
    return math.fsum(delta(before.get(key), after.get(key), name=f"{name} {key}") for key in keys)


def bucket_deltas(before: Buckets | None, after: Buckets | None, *, name: str = "histogram") -> dict[float, float]:
    """Cumulative counts of a histogram's observations in the window, by upper bound in ascending order."""
    if before and after and set(before) != set(after):
        raise WindowVoidError(
            VoidKind.RESTARTED, f"{name}: the bucket bounds changed inside the window; the process restarted"
        )
    bounds = sorted({**(before or {}), **(after or {})})
    start, end = before or {}, after or {}
    grown = {
        bound: delta(start.get(bound), end.get(bound), name=f"{name} le={bound:g}") for bound in bounds
    }  # fmt: skip
    _check_cumulative(grown, name)
    return grown


def merge_buckets(histograms: Iterable[Buckets], *, name: str = "histogram") -> dict[float, float]:
    """Sum of histograms (pods, label sets) with the same bounds. Empty ones are skipped."""
    total: dict[float, float] = {}
    for histogram in histograms:
        if not histogram:
            continue
        if total and set(total) != set(histogram):
            raise WindowVoidError(
                VoidKind.MALFORMED, f"{name}: pods have different bucket bounds; they run different SLOs or versions"
            )
        total = {bound: total.get(bound, 0.0) + histogram[bound] for bound in sorted(histogram)}
    return total


def histogram_quantile(quantile: float, buckets: Buckets) -> float:
    """Prometheus' estimate: linear inside the bucket, from 0 for the first one.

    NaN without observations. A quantile in the last, infinite bucket gives the highest finite bound: the true value is
    at least that.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"a quantile is between 0 and 1, got {quantile!r}")
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf or not buckets[bounds[-1]] > 0:
        return math.nan
    rank = quantile * buckets[bounds[-1]]
    index = next(i for i, bound in enumerate(bounds) if buckets[bound] >= rank)
    if bounds[index] == math.inf:
        return bounds[-2]
    if index == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[index - 1], buckets[bounds[index - 1]]) if index else (0.0, 0.0)
    inside = buckets[bounds[index]] - below
    return bounds[index] if inside <= 0 else low + (bounds[index] - low) * (rank - below) / inside


def max_bucket(buckets: Buckets) -> float:
    """Upper bound of the highest bucket that saw anything: no observation was above it. NaN without observations."""
    highest, below = math.nan, 0.0
    for bound in sorted(buckets):
        if buckets[bound] > below:
            highest, below = bound, buckets[bound]
    return highest


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """What one window measured. Latencies in seconds; NaN where nothing was observed."""

    counts: Counts
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    itl_p50: float
    itl_p95: float
    itl_p99: float
    itl_max: float  # upper bound of the highest bucket seen; infinite beyond the last finite bound

    def to_dict(self) -> dict[str, float | None]:
        """Counts, latencies and rates for JSON; values that are not finite become None."""
        latencies = {name: value for name, value in asdict(self).items() if name != "counts"}
        rates = {name: getattr(self.counts, name) for name in ("attainment", "goodput", "throughput")}
        values: dict[str, float] = asdict(self.counts) | latencies | rates
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def window_stats(counts: Counts, *, ttft: Buckets, itl: Buckets) -> WindowStats:
    """Summarise a window from deltas: counts by the joint SLO counters, latencies by bucket deltas."""
    if not (math.isfinite(counts.seconds) and counts.seconds > 0):
        raise WindowVoidError(VoidKind.MALFORMED, f"the window lasted {counts.seconds} s; it must be above 0")
    if not 0 <= counts.good <= counts.requests:
        raise WindowVoidError(
            VoidKind.MALFORMED,
            f"{counts.good:g} good requests of {counts.requests:g}: the two counters were not read at one scrape",
        )
    return WindowStats(
        counts=counts,
        ttft_p50=histogram_quantile(0.5, ttft),
        ttft_p95=histogram_quantile(0.95, ttft),
        ttft_p99=histogram_quantile(0.99, ttft),
        itl_p50=histogram_quantile(0.5, itl),
        itl_p95=histogram_quantile(0.95, itl),
        itl_p99=histogram_quantile(0.99, itl),
        itl_max=max_bucket(itl),
    )


def _check_cumulative(buckets: Buckets, name: str) -> None:
    previous = 0.0
    for bound, count in buckets.items():
        if count < previous:
            raise WindowVoidError(
                VoidKind.MALFORMED,
                f"{name}: le={bound:g} grew by {count:g}, less than the bound below it ({previous:g})",
            )
        previous = count
