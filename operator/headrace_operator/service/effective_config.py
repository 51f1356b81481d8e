"""The effective config of a service: which value each knob has, and who set it.

defaults < the proposal in force < what the spec pins. A proposal wins over a pinned value only with overridePinned,
and only as long as the pinned value is the one that it overrode: whoever edits the spec later, wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_core.knobs.resolve import ConfigError, EngineConfig, resolve
from headrace_core.knobs.table import CAPPED_KNOBS, HOT, KNOB_BY_NAME, KNOBS, KnobValue
from headrace_operator.cluster.hashing import digest
from headrace_operator.rollout.revisions import ActiveRevision

GPU_TOKEN_CEILING = 8192
CPU_TOKEN_CEILING = 2048  # above the CPU's default budget of 256, so that tuning has room without a restart


class KnobSource(StrEnum):
    """Who set a knob."""

    DEFAULT = "Default"
    TUNED = "Tuned"
    SPEC = "Spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveConfig:
    """`values` are the knobs that somebody set (they go into engine.json); the engine computes the others by device."""

    values: Mapping[str, KnobValue]
    sources: Mapping[str, KnobSource]
    ceilings: Mapping[str, int]
    slo: Mapping[str, float | None] | None
    on_gpu: bool
    revision: str
    ignored: str = ""  # why the proposal in force is not used, if it is not

    def config(self, device: str | None = None) -> EngineConfig:
        """Every knob's value on `device` (`cpu`, `cuda`); by default the one that the spec asks for.

        A pretend GPU is a CPU in the engine's eyes, so what an engine reports decides what its defaults are.
        """
        return resolve(self.values, device=device or self._declared, ceilings=self.ceilings)

    def hot(self, device: str | None = None) -> dict[str, KnobValue]:
        """The hot knobs alone, as a running engine on `device` should have them."""
        return self.config(device).hot_values()

    def boot(self) -> dict[str, object]:
        """What a process reads only when it starts."""
        fixed = {name: value for name, value in self.values.items() if KNOB_BY_NAME[name].klass is not HOT}
        return {"config": fixed, "ceilings": dict(self.ceilings)}

    def engine_json(self) -> dict[str, object]:
        """Content of engine.json."""
        return {
            "revision": self.revision,
            "config": dict(self.values),
            "ceilings": dict(self.ceilings),
            "slo": self.slo,
        }

    @property
    def _declared(self) -> str:
        return "cuda" if self.on_gpu else "cpu"


def ceilings_of(pinned: Mapping[str, KnobValue], *, on_gpu: bool) -> dict[str, int]:
    """Boot values of the capped knobs: the table's default, or the pinned value where that is higher."""
    ceilings = {}
    for knob in CAPPED_KNOBS:
        base = (GPU_TOKEN_CEILING if on_gpu else CPU_TOKEN_CEILING) if knob.default is None else int(knob.default)
        value = pinned.get(knob.name)
        ceilings[knob.name] = base if value is None else max(base, int(value))
    return ceilings


def effective_config(service: InferenceService, tuned: ActiveRevision | None) -> EffectiveConfig:
    """Effective config of `service`. Raises `ConfigError` if what the spec pins is not valid by itself.

    A proposal that no longer fits what the spec pins is left out, and `ignored` says why.
    """
    pinned = service.spec.engine.config.values()
    alone = _build(service, pinned, {})
    alone.config()
    if tuned is None:
        return alone
    both = _build(service, pinned, tuned_values(pinned, tuned))
    try:
        both.config()
    except ConfigError as error:
        return replace(alone, ignored=f"the proposal of TuningRun {tuned.tuning_run} does not fit the spec: {error}")
    return both


def tuned_values(pinned: Mapping[str, KnobValue], tuned: ActiveRevision) -> dict[str, KnobValue]:
    """The part of a proposal that is in force beside what the spec pins."""
    return {name: value for name, value in tuned.knobs.items() if name not in pinned or _overrides(pinned, tuned, name)}


def _overrides(pinned: Mapping[str, KnobValue], tuned: ActiveRevision, name: str) -> bool:
    return tuned.override_pinned and name in tuned.pinned and tuned.pinned[name] == pinned[name]


def _build(
    service: InferenceService, pinned: Mapping[str, KnobValue], proposed: Mapping[str, KnobValue]
) -> EffectiveConfig:
    merged = {**pinned, **proposed}
    values = {knob.name: merged[knob.name] for knob in KNOBS if knob.name in merged}
    sources = {knob.name: _source(knob.name, pinned, proposed) for knob in KNOBS}
    ceilings = ceilings_of(pinned, on_gpu=service.on_gpu)
    slo = service.spec.slo.for_engine() if service.spec.slo else None
    return EffectiveConfig(
        values=values,
        sources=sources,
        ceilings=ceilings,
        slo=slo,
        on_gpu=service.on_gpu,
        revision=digest({"values": values, "ceilings": ceilings, "slo": slo}),
    )


def _source(name: str, pinned: Mapping[str, KnobValue], proposed: Mapping[str, KnobValue]) -> KnobSource:
    if name in proposed:
        return KnobSource.TUNED
    return KnobSource.SPEC if name in pinned else KnobSource.DEFAULT
