"""Forecasts: how much output is still to come, and how many KV blocks a batch will need at its peak."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import accumulate

PRIOR = 128  # output tokens expected of a request before any has ended


class OutputPredictor:
    """Expected output length, from the last `window` requests that ended by themselves.

    All that is known of a running request is how much it has generated, so the forecast is the mean length of those
    that were longer. If none was, it is as much again as the request has generated, and at least `PRIOR`.
    """

    def __init__(self, window: int = 512) -> None:
        self._recent: deque[int] = deque(maxlen=window)
        self._sorted: list[int] = []
        self._tails: list[int] | None = None  # sums of the 1, 2, ... longest

    def record(self, length: int) -> None:
        """A request ended with `length` output tokens."""
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(length)
        insort(self._sorted, length)
        self._tails = None

    def remaining(self, generated: int, max_tokens: int) -> int:
        """Tokens still expected of a request that has generated `generated` of at most `max_tokens`; at least 1."""
        longer = len(self._sorted) - bisect_right(self._sorted, generated)
        expected = self._mean_of_longest(longer) - generated if longer else max(PRIOR, generated)
        return max(1, min(expected, max_tokens - generated))

    def _mean_of_longest(self, count: int) -> int:
        if self._tails is None:
            self._tails = list(accumulate(reversed(self._sorted)))
        return -(-self._tails[count - 1] // count)


def peak_blocks(loads: Iterable[tuple[int, int]], *, distinct: int, block_size: int) -> int:
    """Most blocks held at once by sequences given as (tokens still to be written, blocks held); LightLLM's rule.

    Sequences end in the order of what remains of them. So the i with the most left run together until the i-th ends,
    and then hold what they hold now plus i times its remainder. Several sequences may share a block: `distinct` counts
    the blocks held now, each once.
    """
    held = peak = 0
    for count, (tokens, blocks) in enumerate(sorted(loads, reverse=True), 1):
        held += blocks
        peak = max(peak, min(held, distinct) - (-count * tokens // block_size))
    return peak
