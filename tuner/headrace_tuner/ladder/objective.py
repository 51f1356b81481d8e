"""Rates a window: score, constraints, and the margin that breaks ties. Pure.

Goodput is good requests per second, by the engine's joint counter, over the requests that were planned: a request that
was refused, failed or never ended is a miss, or a config would win by refusing requests. Throughput is output tokens
per second. Both are constrained by the attainment of the SLO.

Where every config serves the whole load, goodput says nothing. The margin then breaks the tie: how far the 95th
percentiles stay below their thresholds. It adds less than one request of a window, so it never outranks one; and it
takes no part in the verification, so it never makes a winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_api.v1alpha1.tuningrun import Objective
from headrace_tuner.measure.reading import TrialReading

ATTAINMENT, RUNNABLE = "attainment", "runnable"
MARGIN_WEIGHT = 0.5  # of one good request, or of one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyGoal:
    """The goal: objective, least share of good requests, thresholds in seconds by target (ttft, itl, e2e)."""

    objective: Objective
    attainment: float
    thresholds: Mapping[str, float]

    def score(self, reading: TrialReading) -> float:
        """Larger is better. Per second: good requests, or output tokens."""
        counts = reading.counts
        if self.objective is Objective.GOODPUT:
            unit, value = 1.0, counts.goodput
        else:
            unit, value = reading.throughput * counts.seconds / counts.requests, reading.throughput
        return value + MARGIN_WEIGHT * unit * self.margin(reading) / counts.seconds

    def margin(self, reading: TrialReading) -> float:
        """0 to 1: mean distance of the 95th percentiles below their thresholds; 0.5 is right at them."""
        slacks = [_slack(reading.p95.get(target, math.nan), limit) for target, limit in self.thresholds.items()]
        return math.fsum(slacks) / len(slacks) if slacks else 0.5

    def constraints(self, reading: TrialReading) -> dict[str, float]:
        """Signed slack by constraint, as Optuna defines it: above 0 is violated."""
        return {ATTAINMENT: self.attainment - reading.counts.attainment, RUNNABLE: -1.0}

    @property
    def broken(self) -> dict[str, float]:
        """Constraints of a config that the engine refuses or does not survive: nothing was good."""
        return {ATTAINMENT: self.attainment, RUNNABLE: 1.0}


def _slack(value: float, limit: float) -> float:
    """1 at 0, 0.5 at the limit, towards 0 beyond; 0 if nothing was observed."""
    return 0.0 if math.isnan(value) else limit / (limit + value)
