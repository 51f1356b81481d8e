"""Plans of load: who arrives when, with how long a prompt and answer. Pure and seeded.

Arrivals are a Poisson process conditioned on its count, and the mix of short and long prompts is exact: the offered
load of a window is the one asked for, and only its order and its lengths are random. Two configs that get the same seed
get the same plan, request by request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

SPREAD = 0.25  # lengths are uniform within this share of their mean, so that a mean of 768 never exceeds 960


class RequestKind(StrEnum):
    """Which part of the mix a request belongs to."""

    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request: `at` seconds after the start, prompt and output in tokens.

    The first `prefix_tokens` of the prompt are those of every request with the same `prefix_group`. `content` is a
    prompt or a list of messages to send as it stands; without it, a prompt of the length is made up.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    kind: RequestKind
    prefix_tokens: int = 0
    prefix_group: int = 0
    content: str | tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A stationary open-loop load: `rate` in requests per second, `duration` in seconds, lengths in tokens."""

    rate: float
    duration: float
    short_prompt_tokens: int
    output_tokens: int
    long_prompt_tokens: int = 0
    long_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "duration", "short_prompt_tokens", "output_tokens"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: must be above 0, got {value!r}")
        if not 0 <= self.long_share <= 1:
            raise ValueError(f"long_share: must be between 0 and 1, got {self.long_share!r}")
        if self.long_share > 0 and self.long_prompt_tokens < 1:
            raise ValueError("long_prompt_tokens: must be at least 1 where long_share is above 0")

    @property
    def requests(self) -> int:
        """Requests of one plan, at least 1."""
        return max(1, round(self.rate * self.duration))

    @property
    def longest(self) -> int:
        """Upper bound of prompt plus output, in tokens."""
        prompt = max(self.short_prompt_tokens, self.long_prompt_tokens if self.long_share > 0 else 0)
        return _bounds(prompt)[1] + _bounds(self.output_tokens)[1]


def plan_load(workload: Workload, seed: int) -> tuple[PlannedRequest, ...]:
    """The requests of one window, in order of arrival."""
    rng = random.Random(seed)  # noqa: S311  (repeatable, not secret)
    arrivals = sorted(rng.uniform(0, workload.duration) for _ in range(workload.requests))
    kinds = mix(workload.requests, long_share=workload.long_share, rng=rng)
    return tuple(_request(workload, rng, at=at, kind=kind) for at, kind in zip(arrivals, kinds, strict=True))


def endless_load(workload: Workload, seed: int) -> Iterator[PlannedRequest]:
    """The same load without an end: windows of fresh seeds, one after another."""
    window = 0
    while True:
        for request in plan_load(workload, derive_seed(seed, window)):
            yield replace(request, at=request.at + window * workload.duration)
        window += 1


def derive_seed(*parts: int | str) -> int:
    """A seed that differs wherever a part does, the same on every machine and in every run."""
    return random.Random(":".join(map(str, parts))).getrandbits(31)  # noqa: S311


def mix(requests: int, *, long_share: float, rng: random.Random) -> list[RequestKind]:
    """The kind of each request: exact in its share, random in its order."""
    long = round(long_share * requests)
    kinds = [RequestKind.LONG] * long + [RequestKind.SHORT] * (requests - long)
    rng.shuffle(kinds)
    return kinds


def prompt_ids(count: int, *, salt: str, low: int, high: int) -> list[int]:
    """`count` token ids from `low` to `high` - 1. Another salt gives another prompt, so no cache is warm for it."""
    rng = random.Random(salt)  # noqa: S311
    return [rng.randrange(low, high) for _ in range(count)]


def _request(workload: Workload, rng: random.Random, *, at: float, kind: RequestKind) -> PlannedRequest:
    mean = workload.long_prompt_tokens if kind is RequestKind.LONG else workload.short_prompt_tokens
    return PlannedRequest(
        at=at,
        prompt_tokens=rng.randint(*_bounds(mean)),
        output_tokens=rng.randint(*_bounds(workload.output_tokens)),
        kind=kind,
    )


def _bounds(mean: int) -> tuple[int, int]:
    spread = int(mean * SPREAD)
    return mean - spread, mean + spread
