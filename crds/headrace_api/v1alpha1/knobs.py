"""The engine's knobs as fields, derived from `headrace_core.knobs.table`: names, bounds, choices, docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, Strict, create_model

from headrace_api.base import Model
from headrace_core.knobs.table import HOT_KNOBS, KNOB_BY_CAMEL, KNOBS, Knob, KnobKind, KnobValue


class KnobValues(Model):
    """Some knobs with their values; a knob that is not set is None and is left out of `values()`."""

    @classmethod
    def of(cls, values: Mapping[str, KnobValue]) -> Self:
        """From values by snake_case name, as in the knob table; names that are not fields here are left out."""
        return cls.model_validate({name: value for name, value in values.items() if name in cls.model_fields})

    def values(self) -> dict[str, KnobValue]:
        """The knobs that are set, by snake_case name, in the table's order."""
        return self.model_dump(mode="python", exclude_none=True)


_TYPES: Mapping[KnobKind, Any] = {
    KnobKind.INT: Annotated[int, Strict()],
    KnobKind.FLOAT: Annotated[float, Strict()],
    KnobKind.BOOL: Annotated[bool, Strict()],
}


def _description(knob: Knob) -> str:
    how = {
        "hot": "Changes without a restart",
        "drain": "Changing it drains the engine",
        "restart": "Changing it restarts the engine",
    }
    text = f"{knob.doc} {how[knob.klass.value]}"
    if knob.capped_at_boot:
        text += ", up to the value that the pod was started with"
    unit = f" Unit: {knob.unit}." if knob.unit else ""
    default = "" if knob.default is None else f" Default: {str(knob.default).lower()}."
    return f"{text}.{unit}{default}"


def _field(knob: Knob) -> tuple[Any, Any]:
    base = Literal[knob.choices] if knob.kind is KnobKind.CHOICE else _TYPES[knob.kind]
    bounds: dict[str, Any] = {}
    for bound, value in (("ge", knob.minimum), ("le", knob.maximum), ("lt", knob.below)):
        if value is not None:
            bounds[bound] = int(value) if knob.kind is KnobKind.INT else value
    return base | None, Field(default=None, description=_description(knob), **bounds)


def _model(name: str, doc: str, knobs: Iterable[Knob]) -> Any:
    fields: dict[str, Any] = {knob.name: _field(knob) for knob in knobs}
    return create_model(name, __base__=KnobValues, __module__=__name__, __doc__=doc, **fields)


if TYPE_CHECKING:

    class EngineKnobs(KnobValues):
        """Every knob of the table, each optional."""

    class HotKnobs(KnobValues):
        """The hot knobs of the table, each optional."""
else:
    EngineKnobs = _model("EngineKnobs", "The engine's knobs; one that is not set has its default.", KNOBS)
    HotKnobs = _model("HotKnobs", "The knobs that change without a restart.", HOT_KNOBS)


def _hot(name: str) -> str:
    knob = KNOB_BY_CAMEL.get(name)
    if knob is None or knob not in HOT_KNOBS:
        raise ValueError(f"{name!r} is not a hot knob; choose one of {', '.join(HOT_KNOB_NAMES)}")
    return name


HOT_KNOB_NAMES: tuple[str, ...] = tuple(knob.camel for knob in HOT_KNOBS)
HotKnobName = Annotated[
    str,
    AfterValidator(_hot),
    Field(json_schema_extra={"enum": list(HOT_KNOB_NAMES)}),
]
