"""The load of a TuningRun."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from headrace_api.base import Duration, Model, cel, rules
from headrace_api.quantity import parse_duration


class WorkloadProfile(StrEnum):
    """Where the load comes from."""

    SYNTHETIC = "Synthetic"


class LengthSpec(Model):
    """Distribution of a number of tokens."""

    mean: Annotated[int, Strict(), Field(ge=1, le=16_777_216)]
    """Mean, in tokens."""


class PromptSpec(Model):
    """Lengths of prompts: short ones, and a share of long ones."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "(has(self.longShare) && self.longShare > 0.0) == has(self.long)",
                "long and longShare go together: set both, or neither",
            )
        )
    )

    short: LengthSpec
    """Short prompts."""
    long: LengthSpec | None = None
    """Long prompts."""
    long_share: Annotated[float, Strict(), Field(ge=0, le=1)] = 0.0
    """Share of long ones, 0 to 1. Default: 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.long_share > 0) != (self.long is not None):
            raise ValueError("long and longShare go together: set both, or neither")
        return self


class WorkloadSpec(Model):
    """The load under which configs are compared; arrivals are open-loop and planned ahead."""

    profile: WorkloadProfile = WorkloadProfile.SYNTHETIC
    """Where the load comes from. Default: Synthetic."""
    rate: Annotated[float, Strict(), Field(gt=0, le=1_000_000)]
    """Requests per second."""
    duration: Duration = "20s"
    """Length of one measured window. Default: 20s."""
    warmup: Duration = "3s"
    """Load before each window, which is not counted. Default: 3s."""
    prompt_tokens: PromptSpec
    """Lengths of prompts."""
    output_tokens: LengthSpec
    """Lengths of outputs."""
    seed: Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)] = 0
    """Seed of arrivals and lengths. Default: 0."""

    @property
    def duration_seconds(self) -> float:
        """Length of one window, seconds."""
        return parse_duration(self.duration)

    @property
    def warmup_seconds(self) -> float:
        """Warm-up before each window, seconds."""
        return parse_duration(self.warmup)
