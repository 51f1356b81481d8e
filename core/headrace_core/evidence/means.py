"""The interval of a mean by Student's t, over observations that do not depend on each other.

A text is one observation: its tokens depend on each other, its difference per token is one number. Why t and not the
bootstrap: at some 40 texts the percentile bootstrap is as narrow as a normal interval with the biased variance, so it
covers less than its level (and at 8 texts much less), while t covers its level for anything near symmetric, which the
differences of two roundings are. Neither can see a fault that no text of the sample has: see `hurt`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from headrace_core.evidence.intervals import Interval, wilson


def paired_mean(differences: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Two-sided interval of the mean. Fewer than two differences: the interval is all numbers. Raises `ValueError`."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, both excluded, got {confidence!r}")
    if not all(map(math.isfinite, differences)):
        raise ValueError("a difference is not finite: leave failed texts out and count them separately")
    count = len(differences)
    mean = math.fsum(differences) / count if count else math.nan
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in differences) / (count - 1)
    reach = t_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - reach, mean + reach)


def hurt(differences: Sequence[float], margin: float, *, confidence: float = 0.95) -> Interval:
    """Share of texts that are worse by more than `margin`, with Wilson's interval: 0 of 40 still allows 8.8 %."""
    return wilson(sum(value > margin for value in differences), len(differences), confidence=confidence)


def texts_needed(interval: Interval, margin: float, count: int) -> int | None:
    """How many texts would bring the upper end below `margin` if mean and spread stay; None if none would."""
    room = margin - interval.estimate
    if not room > 0 or not math.isfinite(interval.high):
        return None
    return math.ceil(count * ((interval.high - interval.estimate) / room) ** 2)


def equal_texts_needed(share: float, *, confidence: float = 0.95) -> int | None:
    """How many texts, all of them equal, show at least `share` to be equal; None for a share of 1."""
    if share >= 1:
        return None
    # Wilson's lower bound of n out of n is n / (n + z^2).
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(z * z * share / (1 - share))


@lru_cache(maxsize=64)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t with `degrees` (1 or more, whole) stays below with `probability` (0.5 to 1)."""
    if degrees < 1 or not 0.5 <= probability < 1:
        raise ValueError(f"needs degrees of at least 1 and 0.5 <= probability < 1, got {degrees!r}, {probability!r}")
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(value: float, degrees: int) -> float:
    """Probability that Student's t with whole `degrees` is below `value` >= 0: a finite sum, exact for whole degrees.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(value / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    return 0.5 + ((angle + sine * total) / math.pi if odd else sine * total / 2)
