"""When requests arrive: Poisson, uniform or bursts, at a rate that may ramp. Pure and seeded.

A window holds exactly the number of requests that its rate asks for; only their order in time is random. For a Poisson
process that is the process itself, given its count; for bursts it is a gamma renewal process scaled to the window. How
much a count varies by itself must come from several seeds.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate


class ArrivalProcess(StrEnum):
    """How gaps between arrivals are drawn."""

    POISSON = "poisson"
    UNIFORM = "uniform"
    BURSTS = "bursts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`rate` in requests a second, at the end `ramp_to` where it is given; infinite: all at once.

    `burstiness` is the shape of the gamma distribution of gaps: 1 is Poisson, less comes in bursts.
    """

    process: ArrivalProcess = ArrivalProcess.POISSON
    rate: float
    ramp_to: float | None = None
    burstiness: float = 0.3

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"rate: must be above 0, got {self.rate:g}")
        if self.ramp_to is not None and not (0 < self.ramp_to < math.inf and self.rate < math.inf):
            raise ValueError(f"ramp_to: must be above 0 and finite, as must be rate, got {self.ramp_to:g}")
        if not 0.01 <= self.burstiness <= 100:
            raise ValueError(f"burstiness: must be from 0.01 to 100, got {self.burstiness:g}")

    @property
    def mean_rate(self) -> float:
        """Requests a second over the whole window."""
        return self.rate if self.ramp_to is None else (self.rate + self.ramp_to) / 2

    def count(self, duration: float) -> int:
        """Requests in `duration` seconds, at least 1."""
        return max(1, round(self.mean_rate * duration))

    def seconds(self, requests: int) -> float:
        """How long that many requests take to arrive."""
        return 0.0 if self.rate == math.inf else requests / self.mean_rate

    def times(self, requests: int, duration: float, rng: random.Random) -> list[float]:
        """Arrival times from 0 to `duration`, in order."""
        return [self._warp(share) * duration for share in self._shares(requests, rng)]

    def _shares(self, requests: int, rng: random.Random) -> list[float]:
        """The times as shares of the window, at a constant rate."""
        if self.process is ArrivalProcess.UNIFORM:
            return [index / requests for index in range(requests)]
        shape = self.burstiness if self.process is ArrivalProcess.BURSTS else 1.0
        gaps = [rng.gammavariate(shape, 1.0) for _ in range(requests + 1)]
        whole = math.fsum(gaps) or 1.0
        return [min(1.0, done / whole) for done in accumulate(gaps[:-1])]

    def _warp(self, share: float) -> float:
        """When a ramp has brought `share` of its requests, as a share of the window."""
        if self.ramp_to is None or self.ramp_to == self.rate:
            return share
        start, slope = self.rate, self.ramp_to - self.rate
        # share * mean = start * t + slope * t^2 / 2, solved without cancellation
        target = share * self.mean_rate
        return min(1.0, 2 * target / (start + math.sqrt(start * start + 2 * slope * target)))
