"""Counts of a window. Every decision is based on these counts; ratios are derived, never stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests that met the whole SLO set, of all requests, and output tokens, in so many seconds.

    Counts are floats because they are differences of counters. The caller decides what `requests` includes: the
    operator counts finished requests, the tuner planned ones.
    """

    good: float
    requests: float
    seconds: float
    output_tokens: float = 0.0

    @property
    def finite(self) -> bool:
        """Whether every count is a number and some time passed."""
        return all(map(math.isfinite, (self.good, self.requests, self.output_tokens))) and 0 < self.seconds < math.inf

    @property
    def attainment(self) -> float:
        """Share of requests that were good; NaN without requests."""
        return self.good / self.requests if self.requests else math.nan

    @property
    def goodput(self) -> float:
        """Good requests per second; NaN where no time passed."""
        return self.good / self.seconds if self.seconds else math.nan

    @property
    def throughput(self) -> float:
        """Output tokens per second; NaN where no time passed."""
        return self.output_tokens / self.seconds if self.seconds else math.nan


def sum_of(counts: Sequence[Counts]) -> Counts:
    """Windows one after the other: everything adds up. No windows: no requests in no time."""
    return Counts(
        good=math.fsum(item.good for item in counts),
        requests=math.fsum(item.requests for item in counts),
        seconds=math.fsum(item.seconds for item in counts),
        output_tokens=math.fsum(item.output_tokens for item in counts),
    )


def side_by_side(counts: Sequence[Counts]) -> Counts:
    """Pods measured over the same time: counts add up, the time is the mean. Raises `ValueError` without any."""
    if not counts:
        raise ValueError("no counts to put side by side")
    total = sum_of(counts)
    return replace(total, seconds=total.seconds / len(counts))
