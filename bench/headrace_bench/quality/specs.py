"""Parses the values of --a and --b as knobs. The engine checks their bounds, since it knows the device."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_bench.errors import BenchError
from headrace_core.knobs.table import KNOB_BY_NAME, KnobKind, KnobValue
from headrace_core.observations import SideSpec

NUM_BLOCKS = "num_blocks"
TRUTHS: Mapping[str, bool] = {"true": True, "on": True, "false": False, "off": False}


def parse(label: str, typed: str) -> SideSpec:
    """Parse `knob=value,…`, with names spelled as flags or as fields; empty for the defaults. Raises `BenchError`."""
    flag = f"--{label.lower()}"
    values: dict[str, KnobValue] = {}
    num_blocks: int | None = None
    parts = [part.strip() for part in typed.split(",") if part.strip()]
    for part in parts:
        name, equals, text = part.partition("=")
        name, text = name.strip().removeprefix("--").replace("-", "_"), text.strip()
        if not equals:
            raise BenchError(f"{flag} {part}: knob=value is expected, such as prefill_chunk_size=32")
        if name in values or (name == NUM_BLOCKS and num_blocks is not None):
            raise BenchError(f"{flag}: {name} is given twice")
        if name == NUM_BLOCKS:
            num_blocks = _blocks(flag, text)
        else:
            values[name] = _value(flag, name, text)
    return SideSpec(label=label, about=", ".join(parts) or "defaults", values=values, num_blocks=num_blocks)


def _blocks(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise BenchError(f"{flag} {NUM_BLOCKS}={text}: a whole number of at least 2 is expected")
    return int(text)


def _value(flag: str, name: str, text: str) -> KnobValue:
    knob = KNOB_BY_NAME.get(name)
    if knob is None:
        known = ", ".join(sorted([*KNOB_BY_NAME, NUM_BLOCKS]))
        raise BenchError(f"{flag} {name}: is not a knob of this engine; known are {known}")
    try:
        match knob.kind:
            case KnobKind.INT:
                return int(text)
            case KnobKind.FLOAT:
                return float(text)
            case KnobKind.BOOL:
                return TRUTHS[text.lower()]
            case KnobKind.CHOICE:
                return text
    except (ValueError, KeyError) as error:
        raise BenchError(f"{flag} {name}={text}: is not of kind {knob.kind}") from error
