"""Is the winner better, beyond the noise? A ratio with its interval, from paired windows on fresh seeds. Pure.

Requests of one window are not independent: one long prefill spoils every stream beside it, and a window on a busy node
is worse as a whole. An interval from the counts alone then calls a config better than itself in one of five studies. So
the interval is the wider of two:

- of the counts: Newcombe's hybrid of two Wilson intervals (MOVER), on the logarithm of the ratio. It holds for few
  requests and at 0 % and 100 %, where a variance says nothing.
- of the windows: linearised variance of the log ratio between windows and between halves of windows, whichever is
  larger, with Student's t. It holds however requests depend on each other.

In simulations of A against A (tests/property) with dependence inside and between windows, at most 5 % of the verdicts
are Improved; a true doubling is found in more than 9 of 10 with three blocks of 24 requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy import stats

from headrace_api.v1alpha1.records import Effect, Half, StudyVerdict
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_core.evidence.intervals import wilson

LARGEST = math.log(1000.0)  # a ratio beyond says the same, and JSON has no infinity
SMALLEST = 0.5  # stands for a count of 0 in a ratio
Windows = Sequence[Sequence[Half]]
Value = Callable[[Half], float]


def compare(baseline: Windows, winner: Windows, *, objective: Objective, confidence: float) -> Effect:
    """Winner relative to baseline: each a list of windows, each window its halves. At least two windows a side.

    Raises ValueError without them.
    """
    if min(len(baseline), len(winner)) < 2:
        raise ValueError("a comparison needs at least two windows of each config")
    goodput = objective is Objective.GOODPUT
    value, size = (_good, _requests) if goodput else (_tokens, _one)
    centre = _log_rate(winner, value, size) - _log_rate(baseline, value, size)
    down, up = _count_reach(baseline, winner, confidence) if goodput else _edge_reach(baseline, winner)
    degrees = 2 * (sum(map(len, baseline)) - 1)
    error = math.hypot(_standard_error(baseline, value, size), _standard_error(winner, value, size))
    spread = float(stats.t.ppf((1 + confidence) / 2, degrees)) * error
    return Effect(ratio=_ratio(centre), low=_ratio(centre - max(down, spread)), high=_ratio(centre + max(up, spread)))


def decide(effect: Effect, *, min_effect: float, any_feasible: bool) -> StudyVerdict:
    """The verdict that an interval supports. `any_feasible`: whether any config met the attainment."""
    worthwhile = 1 + min_effect
    if effect.low > worthwhile:
        return StudyVerdict.IMPROVED
    if not any_feasible:
        return StudyVerdict.NO_FEASIBLE_CONFIG
    return StudyVerdict.KEEP_BASELINE if effect.high < worthwhile else StudyVerdict.INCONCLUSIVE


def most_possible(good: float, requests: float, *, confidence: float) -> float:
    """The largest ratio of goodput that any config could reach over one with these counts: serving every request."""
    return 1 / max(wilson(good, requests, confidence=confidence).low, 1e-9)


def _count_reach(baseline: Windows, winner: Windows, confidence: float) -> tuple[float, float]:
    """Distances from the log ratio to its ends, from the counts of good requests alone."""
    (below, above), (base_below, base_above) = (_wilson_reach(item, confidence) for item in (winner, baseline))
    return math.hypot(below, base_above), math.hypot(above, base_below)


def _wilson_reach(windows: Windows, confidence: float) -> tuple[float, float]:
    good, requests = _sum(windows, _good), _sum(windows, _requests)
    interval, share = wilson(good, requests, confidence=confidence), max(good, SMALLEST) / requests
    low = max(interval.low, share * math.exp(-LARGEST))
    return math.log(share / min(low, share)), math.log(max(interval.high, share) / share)


def _edge_reach(baseline: Windows, winner: Windows) -> tuple[float, float]:
    """One answer more or less at the end of each window is not an effect."""
    sides = [len(windows) / max(1.0, _sum(windows, _requests)) for windows in (baseline, winner)]
    return math.hypot(*sides), math.hypot(*sides)


def _standard_error(windows: Windows, value: Value, size: Value) -> float:
    """Of the logarithm of the rate: between windows or between halves, whichever is larger."""
    return max(_clustered(windows, value, size), _clustered([[half] for item in windows for half in item], value, size))


def _clustered(clusters: Windows, value: Value, size: Value) -> float:
    total, count = max(_sum(clusters, value), SMALLEST), len(clusters)
    rate = total / _sum(clusters, size)
    residuals = ((_sum([item], value) - rate * _sum([item], size)) / total for item in clusters)
    return math.sqrt(count / (count - 1) * math.fsum(residual**2 for residual in residuals))


def _log_rate(windows: Windows, value: Value, size: Value) -> float:
    return math.log(max(_sum(windows, value), SMALLEST) / _sum(windows, size))


def _sum(windows: Windows, value: Value) -> float:
    return math.fsum(value(half) for window in windows for half in window)


def _ratio(log_ratio: float) -> float:
    return math.exp(min(LARGEST, max(-LARGEST, log_ratio)))


def _good(half: Half) -> float:
    return half.good


def _requests(half: Half) -> float:
    return half.requests


def _tokens(half: Half) -> float:
    return half.tokens


def _one(_: Half) -> float:
    return 1.0
