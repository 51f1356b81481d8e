"""From what is asked for to who arrives when, with how long a prompt and answer. Pure and seeded.

Each aspect has a random stream of its own: another rate leaves the lengths as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from headrace_core.workload.arrivals import Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import PlannedRequest, RequestKind, derive_seed, mix


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


def plan_window(
    arrivals: Arrivals, shape: RequestMix, *, requests: int, duration: float, seed: int
) -> list[PlannedRequest]:  # fmt: skip
    """The requests of one window of `duration` seconds, in order of arrival."""
    streams = {name: _stream(seed, name) for name in ("arrivals", "kind", "prompt", "output", "prefix")}
    times = arrivals.times(requests, duration, streams["arrivals"])
    kinds = mix(requests, long_share=shape.long_share, rng=streams["kind"])
    return [_request(shape, streams, at=at, kind=kind) for at, kind in zip(times, kinds, strict=True)]


def with_warmup(
    arrivals: Arrivals, shape: RequestMix, *, requests: int, duration: float, warmup: float, seed: int
) -> list[PlannedRequest]:
    """A window with `warmup` seconds of the same load before it: what is measured begins in the midst of load.

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


def endless(shape: RequestMix, seed: int, *, block: int = 64) -> Iterator[PlannedRequest]:
    """Requests without times and without an end, for a closed loop; the mix is exact in each block."""
    arrivals, number = Arrivals(rate=1.0), 0
    while True:
        yield from plan_window(
            arrivals, shape, requests=block, duration=float(block), seed=derive_seed(seed, "block", number)
        )
        number += 1


def last_arrival(plan: Sequence[PlannedRequest]) -> float:
    """Seconds from the start to the last arrival."""
    return max((request.at for request in plan), default=0.0)


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
