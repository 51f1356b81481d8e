"""The SLO block, shared by InferenceService and TuningRun."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from headrace_api.base import Duration, Model, cel, rules
from headrace_api.quantity import parse_duration

Percentile = Annotated[float, Strict(), Field(gt=0, lt=100)]


class LatencyTarget(Model):
    """One latency threshold."""

    percentile: Percentile = 99.0
    """Percentile of one request's values that must meet the threshold, above 0 and below 100. It matters for itl,
    whose values are the gaps between tokens; ttft, tpot and e2e have one value per request. The share of requests
    that must be good is `attainment`. Default: 99."""
    threshold: Duration
    """Longest time allowed, such as 800ms."""

    @property
    def seconds(self) -> float:
        """Threshold in seconds."""
        return parse_duration(self.threshold)


_ANY_TARGET = "slo needs at least one of ttft, itl, tpot, e2e"


class SloSpec(Model):
    """What counts as a good request, and what share must be good. All thresholds that are set must hold at once."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.ttft) || has(self.itl) || has(self.tpot) || has(self.e2e)",
                _ANY_TARGET,
            )
        )
    )

    ttft: LatencyTarget | None = None
    """Time to first token: arrival to the first token."""
    itl: LatencyTarget | None = None
    """Inter-token latency: each gap between two tokens of a request."""
    tpot: LatencyTarget | None = None
    """Time per output token: mean gap of one request."""
    e2e: LatencyTarget | None = None
    """Arrival to the last token."""
    attainment: Annotated[float, Strict(), Field(gt=0, le=1)] = 0.99
    """Share of requests that must be good, above 0, at most 1. Default: 0.99."""
    min_requests: Annotated[int, Strict(), Field(ge=1, le=1_000_000_000)] = 100
    """With fewer requests than this, nothing is decided. Default: 100."""
    window: Duration = "5m"
    """Time over which the share is taken. Default: 5m."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not any((self.ttft, self.itl, self.tpot, self.e2e)):
            raise ValueError(_ANY_TARGET)
        return self

    def for_engine(self) -> dict[str, float | None]:
        """The `slo` object of engine.json: thresholds in seconds and the percentile of itl."""
        return {
            "ttft_seconds": self.ttft.seconds if self.ttft else None,
            "itl_seconds": self.itl.seconds if self.itl else None,
            "itl_percentile": self.itl.percentile if self.itl else 99.0,
            "tpot_seconds": self.tpot.seconds if self.tpot else None,
            "e2e_seconds": self.e2e.seconds if self.e2e else None,
        }
