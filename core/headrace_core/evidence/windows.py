"""Maths on two scrapes of Prometheus series: what happened between them. No I/O, no clock.

A window has a value of each series at its start and at its end. A counter that fell, or a series that vanished, makes
the window worthless: `WindowVoidError` says so, and the caller measures again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Buckets = Mapping[float, float]  # upper bound in seconds (math.inf is the last) -> cumulative count


class WindowVoidError(ValueError):
    """The window measures nothing: a counter was reset, a series vanished, or a value is not a number."""


def delta(before: float | None, after: float | None, *, name: str = "series") -> float:
    """Growth of one counter. `before` None: born inside the window, so it started at 0; both None: never seen, 0."""
    if after is None:
        if before is None:
            return 0.0
        raise WindowVoidError(f"{name}: the series vanished inside the window; its pod is gone or restarted")
    start = 0.0 if before is None else before
    if not (math.isfinite(start) and math.isfinite(after)):
        raise WindowVoidError(f"{name}: went from {start} to {after}, which is not a count")
    if after < start:
        raise WindowVoidError(f"{name}: fell from {start:g} to {after:g}; the process restarted inside the window")
    return after - start


def sum_deltas(before: Mapping[Key, float], after: Mapping[Key, float], *, name: str = "series") -> float:
    """Growth of a counter over all its label sets (`Key` identifies one)."""
    keys = dict.fromkeys([*before, *after])
    return math.fsum(delta(before.get(key), after.get(key), name=f"{name} {key}") for key in keys)


def bucket_deltas(before: Buckets | None, after: Buckets | None, *, name: str = "histogram") -> dict[float, float]:
    """Cumulative counts of what a histogram saw in the window, by upper bound in ascending order."""
    if before and after and set(before) != set(after):
        raise WindowVoidError(f"{name}: the bucket bounds changed inside the window; the process restarted")
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
            raise WindowVoidError(f"{name}: pods have different bucket bounds; they run different SLOs or versions")
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

    seconds: float
    requests: float
    good: float
    output_tokens: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    itl_p50: float
    itl_p95: float
    itl_p99: float
    itl_max: float  # upper bound of the highest bucket seen; infinite beyond the last finite bound

    @property
    def attainment(self) -> float:
        """Share of requests that met the whole SLO set; NaN without requests."""
        return self.good / self.requests if self.requests else math.nan

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.good / self.seconds

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds

    def to_dict(self) -> dict[str, float | None]:
        """Fields and rates for JSON; what is not finite becomes None."""
        derived = {"attainment": self.attainment, "goodput": self.goodput, "throughput": self.throughput}
        return {name: value if math.isfinite(value) else None for name, value in (asdict(self) | derived).items()}


def window_stats(
    *, seconds: float, requests: float, good: float, output_tokens: float, ttft: Buckets, itl: Buckets
) -> WindowStats:
    """Summarise a window from deltas: `requests` and `good` by the joint SLO counters, latencies by bucket deltas."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise WindowVoidError(f"the window lasted {seconds} s; it must be above 0")
    if not 0 <= good <= requests:
        raise WindowVoidError(f"{good:g} good requests of {requests:g}: the two counters were not read at one scrape")
    return WindowStats(
        seconds=seconds,
        requests=requests,
        good=good,
        output_tokens=output_tokens,
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
                f"{name}: le={bound:g} grew by {count:g}, less than the bound below it ({previous:g})"
            )
        previous = count
