"""Lengths of prompts and answers: fixed, uniform or lognormal, in tokens. Pure."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

FORMS = "N, uniform:LOW:HIGH, lognormal:MEAN:SIGMA or lognormal:MEAN:SIGMA:MAX"
SPREAD = 0.25  # of a mean, to both sides, where nothing else is said
TAIL = 8  # a lognormal length without a maximum is cut at this many means
LONGEST = 16_777_216
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Length:
    """A distribution of lengths between `low` and `high`, at least 1. `sigma` 0: uniform between the two."""

    low: int
    high: int
    mean: float
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Length:
        """Read one of `FORMS`. Raises ValueError that says what is wrong."""
        name, _, rest = text.strip().partition(":")
        if not rest:
            name, rest = "fixed", name
        numbers = _numbers(text, rest)
        match name, len(numbers):
            case "fixed", 1:
                return cls(_whole(text, numbers[0]), _whole(text, numbers[0]), numbers[0])
            case "uniform", 2:
                return cls._uniform(text, *numbers)
            case "lognormal", 2 | 3:
                return cls._lognormal(text, *numbers)
        raise ValueError(f"{text!r} is not a length: write {FORMS}")

    @classmethod
    def around(cls, mean: int) -> Length:
        """Uniform within a quarter of `mean`, so that a mean of 768 never exceeds 960."""
        spread = int(mean * SPREAD)
        return cls(mean - spread, mean + spread, float(mean))

    @classmethod
    def _uniform(cls, text: str, low: float, high: float) -> Length:
        if low > high:
            raise ValueError(f"{text!r}: the lower bound exceeds the upper one")
        return cls(_whole(text, low), _whole(text, high), (low + high) / 2)

    @classmethod
    def _lognormal(cls, text: str, mean: float, sigma: float, highest: float | None = None) -> Length:
        high = _whole(text, highest if highest is not None else math.ceil(mean * TAIL))
        if not 0 < sigma <= 3:
            raise ValueError(f"{text!r}: sigma must be above 0 and at most 3")
        if not 1 <= mean <= high:
            raise ValueError(f"{text!r}: the mean must be at least 1 and at most the maximum")
        return cls(1, high, mean, sigma)

    def draw(self, rng: random.Random) -> int:
        """One length."""
        if not self.sigma:
            return rng.randint(self.low, self.high)
        drawn = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return min(self.high, max(self.low, round(drawn)))

    def __str__(self) -> str:
        if self.sigma:
            return f"lognormal:{self.mean:g}:{self.sigma:g}:{self.high}"
        return str(self.low) if self.low == self.high else f"uniform:{self.low}:{self.high}"


def _numbers(text: str, rest: str) -> list[float]:
    parts = rest.split(":")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError(f"{text!r} is not a length: write {FORMS}")
    return [float(part) for part in parts]


def _whole(text: str, value: float) -> int:
    if not (float(value).is_integer() and 1 <= value <= LONGEST):
        raise ValueError(f"{text!r}: a bound must be a whole number from 1 to {LONGEST}, got {value:g}")
    return int(value)
