"""The search space: knob ranges of a TuningRun, and values in the engine's form. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace_api.v1alpha1.search import KnobRange
from headrace_core.knobs.table import KnobKind, KnobValue

Knobs = Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One searched knob, by snake_case name: either `low` to `high`, or `choices`."""

    name: str
    kind: KnobKind
    low: float = math.nan
    high: float = math.nan
    step: float | None = None
    log: bool = False
    choices: tuple[KnobValue, ...] = ()

    def decode(self, value: object) -> KnobValue:
        """The engine's value for a sampled value."""
        if self.choices:
            return next(choice for choice in self.choices if _same(choice, value))
        number = float(value)  # type: ignore[arg-type]
        return round(number) if self.kind is KnobKind.INT else number

    def holds(self, value: KnobValue) -> bool:
        """Whether the sampler could propose `value`."""
        if self.choices:
            return any(_same(choice, value) for choice in self.choices)
        if value is None or isinstance(value, (bool, str)) or not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return math.isclose(steps, round(steps), abs_tol=1e-9)


@dataclass(frozen=True, slots=True)
class Space:
    """All searched knobs, in the spec's order."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, ranges: Iterable[KnobRange]) -> Space:
        """Space of a TuningRun's `spec.knobs`."""
        return cls(tuple(_dimension(item) for item in ranges))

    @property
    def names(self) -> tuple[str, ...]:
        """Searched knobs, snake_case."""
        return tuple(item.name for item in self.dimensions)

    def decode(self, params: Mapping[str, object]) -> dict[str, KnobValue]:
        """Knobs for sampled parameters."""
        return {item.name: item.decode(params[item.name]) for item in self.dimensions}

    def holds(self, knobs: Knobs) -> bool:
        """Whether the sampler could propose exactly these knobs: only then can it learn from them."""
        return all(item.name in knobs and item.holds(knobs[item.name]) for item in self.dimensions)

    def baseline(self, config: Knobs) -> dict[str, KnobValue]:
        """The searched knobs' values in `config`. Values computed from another knob are written out, so that they
        can be compared and restored."""
        return {
            name: config["max_num_batched_tokens"] if _follows_budget(name, config) else config[name]
            for name in self.names
        }


def _follows_budget(name: str, config: Knobs) -> bool:
    return name == "prefill_chunk_size" and config[name] is None


def _dimension(item: KnobRange) -> Dimension:
    knob = item.knob
    if item.choices is not None:
        return Dimension(name=knob.name, kind=knob.kind, choices=tuple(item.choices))
    low, high = float(item.min or 0.0), float(item.max or 0.0)
    step = item.step or (1.0 if knob.kind is KnobKind.INT and not item.log else None)
    if step is not None:  # the last value reachable by steps
        high = low + math.floor((high - low) / step + 1e-9) * step
    return Dimension(name=knob.name, kind=knob.kind, low=low, high=high, step=step, log=item.log)


def _same(choice: KnobValue, value: object) -> bool:
    return choice == value and isinstance(choice, bool) == isinstance(value, bool)
