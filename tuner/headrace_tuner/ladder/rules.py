"""The first rung: a config that the engine would refuse is not tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure
from headrace_core.knobs.table import KnobValue

Knobs = Mapping[str, KnobValue]


def refusal(config: EngineConfig, knobs: Knobs) -> str | None:
    """Why the engine that runs `config` would refuse `knobs`, or None. Uses the engine's own rules; does not ask it."""
    try:
        reconfigure(config, knobs)
    except ConfigError as error:
        return str(error)
    return None


def engine_config(values: Knobs, ceilings: Mapping[str, int]) -> EngineConfig:
    """The config that a running engine reports, as core's type."""
    known = {name: values[name] for name in EngineConfig.__dataclass_fields__ if name != "ceilings" and name in values}
    return EngineConfig(**known, ceilings=dict(ceilings))  # type: ignore[arg-type]
