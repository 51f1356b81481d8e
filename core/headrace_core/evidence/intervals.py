"""Confidence intervals of one proportion (Wilson) and of the difference of two (Newcombe's hybrid of Wilson scores).

Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10. Both behave at
0, at 1 and for small counts, where the textbook interval collapses to a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval. Without data, `estimate` is NaN and the interval covers everything possible."""

    estimate: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def wilson(successes: float, total: float, *, confidence: float = 0.95) -> Interval:
    """Two-sided interval of a proportion. Counts may be fractional (counter deltas). Raises `ValueError`."""
    _check(successes, total)
    z = _z(confidence)
    if total == 0:
        return Interval(math.nan, 0.0, 1.0)
    share = successes / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # At 0 and 1 the bound is the estimate itself; rounding must not push it inside.
    return Interval(share, 0.0 if successes == 0 else max(0.0, low), 1.0 if successes == total else min(1.0, high))


def difference(
    before: tuple[float, float], after: tuple[float, float], *, confidence: float = 0.95
) -> Interval:  # fmt: skip
    """Interval of `after` minus `before`, each as (successes, total): above 0 means `after` is better.

    The requests of each side must be independent of the other side's. Without data on a side the interval is
    everything possible, so a decision that asks for `low > 0` never passes without data.
    """
    old, new = wilson(*before, confidence=confidence), wilson(*after, confidence=confidence)
    if math.isnan(old.estimate) or math.isnan(new.estimate):
        return Interval(math.nan, -1.0, 1.0)
    estimate = new.estimate - old.estimate
    down = math.hypot(new.estimate - new.low, old.high - old.estimate)
    up = math.hypot(new.high - new.estimate, old.estimate - old.low)
    return Interval(estimate, max(-1.0, estimate - down), min(1.0, estimate + up))


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, both excluded, got {confidence!r}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _check(successes: float, total: float) -> None:
    if not (math.isfinite(total) and 0 <= successes <= total):
        raise ValueError(f"a proportion needs 0 <= successes <= total, got {successes!r} of {total!r}")
