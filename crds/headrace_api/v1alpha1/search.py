"""One searched knob of a TuningRun: a range or choices, checked against the knob table."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from headrace_api.base import Model, cel, rules
from headrace_api.v1alpha1.knobs import HotKnobName
from headrace_core.knobs.table import HOT_KNOBS, KNOB_BY_CAMEL, Knob, KnobKind

_NUMBERS = [knob for knob in HOT_KNOBS if knob.kind in (KnobKind.INT, KnobKind.FLOAT)]


def _number(value: float) -> str:
    return repr(float(value))


def _lookup(knobs: list[Knob], bound: str) -> str:
    rows = ((knob.camel, getattr(knob, bound)) for knob in knobs)
    return "{" + ", ".join(f"'{name}': {_number(value)}" for name, value in rows if value is not None) + "}"


def _range_rules() -> list[dict[str, JsonValue]]:
    """CEL rules of one searched knob; bounds and kinds come from the knob table."""
    lowest, highest, below = (_lookup(_NUMBERS, bound) for bound in ("minimum", "maximum", "below"))
    names = ", ".join(f"'{knob.camel}'" for knob in _NUMBERS)
    whole = ", ".join(f"'{knob.camel}'" for knob in _NUMBERS if knob.kind is KnobKind.INT)
    return [
        # The items of `choices` have no single type, so CEL reaches that list only through dyn().
        cel("has(self.min) != has(dyn(self).choices)", "set exactly one of min and max, or choices"),
        cel("has(self.min) == has(self.max)", "min and max go together: set both, or neither and give choices"),
        cel("!has(self.min) || !has(self.max) || self.min < self.max", "min must be less than max"),
        cel(
            f"!has(self.min) || self.name in [{names}]",
            "min and max are for knobs that are numbers; give choices for this knob",
        ),
        cel(
            f"!has(self.min) || !(self.name in {lowest}) || self.min >= {lowest}[self.name]",
            "min is less than this knob allows; kubectl explain inferenceservice.spec.engine.config shows the bounds",
        ),
        cel(
            f"!has(self.max) || ((!(self.name in {highest}) || self.max <= {highest}[self.name])"
            f" && (!(self.name in {below}) || self.max < {below}[self.name]))",
            "max is more than this knob allows (decodeRatio must stay below 1);"
            " kubectl explain inferenceservice.spec.engine.config shows the bounds",
        ),
        cel(
            f"!has(self.min) || !has(self.max) || !(self.name in [{whole}])"
            " || (self.min == double(int(self.min)) && self.max == double(int(self.max)))",
            "min and max of this knob must be whole numbers",
        ),
        cel("!has(self.step) || has(self.min)", "step needs min and max"),
        cel("!has(self.log) || !self.log || (has(self.min) && self.min > 0.0)", "log needs min above 0, and max"),
        cel("!has(self.log) || !self.log || !has(self.step)", "step and log exclude each other"),
    ]


class KnobRange(Model):
    """One knob to search: either min and max, or choices."""

    model_config = ConfigDict(json_schema_extra=rules(*_range_rules()))

    name: HotKnobName
    """Hot knob, as in spec.engine.config of an InferenceService."""
    min: Annotated[float, Strict()] | None = None
    """Smallest value."""
    max: Annotated[float, Strict()] | None = None
    """Largest value."""
    step: Annotated[float, Strict(), Field(gt=0)] | None = None
    """Distance between two values. Default: 1 for whole numbers, none for others."""
    log: bool = False
    """Search on a logarithmic scale."""
    choices: Annotated[
        list[StrictBool | StrictInt | StrictFloat | StrictStr] | None, Field(min_length=1, max_length=32)
    ] = None
    """Values to choose from."""

    @property
    def knob(self) -> Knob:
        """Row of the knob table."""
        return KNOB_BY_CAMEL[self.name]

    @model_validator(mode="after")
    def _check(self) -> Self:
        problem = self._problem()
        if problem:
            raise ValueError(f"{self.name}: {problem}")
        return self

    def _problem(self) -> str | None:
        if (self.min is None) != (self.max is None):
            return "min and max go together: set both, or neither and give choices"
        if (self.min is None) == (self.choices is None):
            return "set exactly one of min and max, or choices"
        if self.choices is not None:
            return self._choices_problem(self.choices)
        return self._range_problem(self.min or 0.0, self.max or 0.0)

    def _choices_problem(self, choices: list[bool | int | float | str]) -> str | None:
        if len({repr(value) for value in choices}) < len(choices):
            return "choices has a value twice"
        if self.step is not None or self.log:
            return "step and log need min and max"
        problems = (self.knob.problem(value) for value in choices)
        return next((problem for problem in problems if problem), None)

    def _range_problem(self, low: float, high: float) -> str | None:
        knob = self.knob
        if knob.kind not in (KnobKind.INT, KnobKind.FLOAT):
            return "min and max are for knobs that are numbers; give choices for this knob"
        if low >= high:
            return f"min must be less than max, got {low:g} and {high:g}"
        if knob.kind is KnobKind.INT and not (low.is_integer() and high.is_integer()):
            return "min and max of this knob must be whole numbers"
        if self.log and low <= 0:
            return "log needs min above 0"
        if self.log and self.step is not None:
            return "step and log exclude each other"
        as_value = int if knob.kind is KnobKind.INT else float
        return knob.problem(as_value(low)) or knob.problem(as_value(high))
