"""The effective config of a service: which value each knob has, and who set it.

defaults < the proposal in force < what the spec pins. A proposal wins over a pinned value only with overridePinned,
and only as long as the pinned value is the one that it overrode: a later edit of the spec wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_core.knobs.resolve import ConfigError, ConfigProblem
from headrace_core.knobs.table import KNOBS, KnobValue
from headrace_operator.cluster.hashing import digest
from headrace_operator.engines.base import WantedConfig
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.rollout.revisions import ActiveRevision


class KnobSource(StrEnum):
    """Who set a knob."""

    DEFAULT = "Default"
    TUNED = "Tuned"
    SPEC = "Spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveConfig:
    """What the engines should have, and who set each knob."""

    wanted: WantedConfig
    sources: Mapping[str, KnobSource]
    ignored: str = ""  # why the proposal in force is not used, if it is not


def effective_config(service: InferenceService, active: ActiveRevision | None) -> EffectiveConfig:
    """Effective config of `service`. Raises `ConfigError` if what the spec pins is not valid by itself.

    A proposal that no longer fits what the spec pins is left out, and `ignored` says why.
    """
    pinned = service.spec.engine.config.values()
    _check_known(service, pinned)
    alone = _build(service, pinned, {})
    alone.wanted.config()
    if active is None:
        return alone
    both = _build(service, pinned, active_values(pinned, active))
    try:
        both.wanted.config()
    except ConfigError as error:
        return replace(alone, ignored=f"the proposal of TuningRun {active.tuning_run} does not fit the spec: {error}")
    return both


def active_values(pinned: Mapping[str, KnobValue], active: ActiveRevision) -> dict[str, KnobValue]:
    """The part of a proposal that is in force, given what the spec pins."""
    return {
        name: value for name, value in active.knobs.items() if name not in pinned or _overrides(pinned, active, name)
    }


def _overrides(pinned: Mapping[str, KnobValue], active: ActiveRevision, name: str) -> bool:
    return active.override_pinned and name in active.pinned and active.pinned[name] == pinned[name]


def _build(
    service: InferenceService, pinned: Mapping[str, KnobValue], proposed: Mapping[str, KnobValue]
) -> EffectiveConfig:
    merged = {**pinned, **proposed}
    values = {knob.name: merged[knob.name] for knob in KNOBS if knob.name in merged}
    sources = {knob.name: _source(knob.name, pinned, proposed) for knob in KNOBS}
    ceilings = DEFINITIONS[service.spec.engine.kind].ceilings(pinned, on_gpu=service.on_gpu)
    slo = service.spec.slo.for_engine() if service.spec.slo else None
    wanted = WantedConfig(
        values=values,
        ceilings=ceilings,
        slo=slo,
        on_gpu=service.on_gpu,
        revision=digest({"values": values, "ceilings": ceilings, "slo": slo}),
    )
    return EffectiveConfig(wanted=wanted, sources=sources)


def _check_known(service: InferenceService, pinned: Mapping[str, KnobValue]) -> None:
    kind = service.spec.engine.kind
    unknown = [name for name in pinned if DEFINITIONS[kind].knob_class(name) is None]
    if unknown:
        raise ConfigError(tuple(ConfigProblem(name, f"engine {kind.value} has no such knob") for name in unknown))


def _source(name: str, pinned: Mapping[str, KnobValue], proposed: Mapping[str, KnobValue]) -> KnobSource:
    if name in proposed:
        return KnobSource.TUNED
    return KnobSource.SPEC if name in pinned else KnobSource.DEFAULT
