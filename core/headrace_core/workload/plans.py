"""Plans of load: when each request arrives, and how long its prompt and answer are. Pure and seeded.

The count of a window and its mix of short and long prompts are exact: the offered load is the one asked for, and only
its order and its lengths are random. Two configs that get the same seed get the same plan, request by request. Each
aspect has its own random stream, so another rate leaves the lengths unchanged.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any

from headrace_core.workload.arrivals import Arrivals
from headrace_core.workload.lengths import Length

ONE_A_SECOND = Arrivals(rate=1.0)


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
class Prefix:
    """A start that prompts share: `tokens` long, in that `share` of the requests, one of `groups` different ones."""

    tokens: int = 0
    share: float = 1.0
    groups: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"prefix_tokens: must not be negative, got {self.tokens}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"prefix_share: must be between 0 and 1, got {self.share:g}")
        if self.groups < 1:
            raise ValueError(f"prefix_groups: must be at least 1, got {self.groups}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMix:
    """What requests look like: a mix of short and long prompts, exact in its share, and the length of answers."""

    prompt: Length
    output: Length
    long: Length | None = None
    long_share: float = 0.0
    prefix: Prefix = field(default_factory=Prefix)

    def __post_init__(self) -> None:
        if not 0 <= self.long_share <= 1:
            raise ValueError(f"long_share: must be between 0 and 1, got {self.long_share:g}")
        if self.long_share > 0 and self.long is None:
            raise ValueError("long_prompt_tokens: must be given where long_share is above 0")

    @property
    def longest_prompt(self) -> int:
        """Upper bound in tokens."""
        long = self.long.high if self.long and self.long_share > 0 else 0
        return max(self.prompt.high, long, self.prefix.tokens + 1 if self.prefix.share > 0 else 0)

    @property
    def longest(self) -> int:
        """Upper bound of prompt plus answer, in tokens."""
        return self.longest_prompt + self.output.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A stationary open-loop load in six numbers: requests a second, seconds, mean lengths in tokens."""

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
        return self.arrivals.count(self.duration)

    @property
    def arrivals(self) -> Arrivals:
        """A Poisson process."""
        return Arrivals(rate=self.rate)

    @property
    def mix(self) -> RequestMix:
        """Each length within a quarter of its mean."""
        long = Length.around(self.long_prompt_tokens) if self.long_share > 0 else None
        return RequestMix(
            prompt=Length.around(self.short_prompt_tokens),
            output=Length.around(self.output_tokens),
            long=long,
            long_share=self.long_share,
        )

    @property
    def longest(self) -> int:
        """Upper bound of prompt plus output, in tokens."""
        return self.mix.longest


def plan_window(
    arrivals: Arrivals, shape: RequestMix, *, requests: int, duration: float, seed: int
) -> list[PlannedRequest]:  # fmt: skip
    """The requests of one window of `duration` seconds, in order of arrival."""
    streams = {name: _stream(seed, name) for name in ("arrivals", "kind", "prompt", "output", "prefix")}
    times = arrivals.times(requests, duration, streams["arrivals"])
    kinds = _kinds(requests, long_share=shape.long_share, rng=streams["kind"])
    return [_request(shape, streams, at=at, kind=kind) for at, kind in zip(times, kinds, strict=True)]


def with_warmup(
    arrivals: Arrivals, shape: RequestMix, *, requests: int, duration: float, warmup: float, seed: int
) -> list[PlannedRequest]:
    """A window with `warmup` seconds of the same load before it: the measured part starts under load.

    Where the rate ramps, the warm-up has the rate that the ramp begins with.
    """
    measured = plan_window(arrivals, shape, requests=requests, duration=duration, seed=seed)
    if warmup <= 0:
        return measured
    steady = replace(arrivals, ramp_to=None)
    before = plan_window(
        steady, shape, requests=steady.count(warmup), duration=warmup, seed=derive_seed(seed, "warmup")
    )
    return before + [replace(request, at=request.at + warmup) for request in measured]


def endless(
    shape: RequestMix, seed: int, *, arrivals: Arrivals = ONE_A_SECOND, block: int = 64
) -> Iterator[PlannedRequest]:  # fmt: skip
    """Requests without an end, exact in mix and rate in each block of that many. A closed loop ignores the times."""
    seconds = arrivals.seconds(block)
    for number in count():
        plan = plan_window(arrivals, shape, requests=block, duration=seconds, seed=derive_seed(seed, "block", number))
        for request in plan:
            yield replace(request, at=request.at + number * seconds)


def last_arrival(plan: Sequence[PlannedRequest]) -> float:
    """Seconds from the start to the last arrival."""
    return max((request.at for request in plan), default=0.0)


def plan_load(workload: Workload, seed: int) -> tuple[PlannedRequest, ...]:
    """The requests of one window, in order of arrival."""
    plan = plan_window(
        workload.arrivals, workload.mix, requests=workload.requests, duration=workload.duration, seed=seed
    )
    return tuple(plan)


def endless_load(workload: Workload, seed: int) -> Iterator[PlannedRequest]:
    """The same load without an end."""
    return endless(workload.mix, seed, arrivals=workload.arrivals, block=workload.requests)


def derive_seed(*parts: int | str) -> int:
    """A seed that differs if any part does, and is the same on every machine and in every run."""
    return random.Random(":".join(map(str, parts))).getrandbits(31)  # noqa: S311


def prompt_ids(count: int, *, salt: str, low: int, high: int) -> list[int]:
    """`count` token ids from `low` to `high` - 1. Another salt gives another prompt, so no cache is warm for it."""
    rng = random.Random(salt)  # noqa: S311
    return [rng.randrange(low, high) for _ in range(count)]


def _kinds(requests: int, *, long_share: float, rng: random.Random) -> list[RequestKind]:
    """The kind of each request: exact in its share, random in its order."""
    long = round(long_share * requests)
    kinds = [RequestKind.LONG] * long + [RequestKind.SHORT] * (requests - long)
    rng.shuffle(kinds)
    return kinds


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(derive_seed(seed, name))  # noqa: S311  (repeatable, not secret)


def _request(shape: RequestMix, streams: dict[str, random.Random], *, at: float, kind: RequestKind) -> PlannedRequest:
    length = shape.long if kind is RequestKind.LONG and shape.long is not None else shape.prompt
    prefix, rng = shape.prefix, streams["prefix"]
    shared, group = rng.random() < prefix.share, rng.randrange(prefix.groups)
    # The prefix is part of the prompt; where it is longer, one token of the request's own follows it.
    start = prefix.tokens if shared else 0
    return PlannedRequest(
        at=at,
        prompt_tokens=max(length.draw(streams["prompt"]), start + 1 if start else 1),
        output_tokens=shape.output.draw(streams["output"]),
        kind=kind,
        prefix_tokens=start,
        prefix_group=group if start else 0,
    )
