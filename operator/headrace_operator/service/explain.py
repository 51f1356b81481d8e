"""Why each knob of a service has its value: who set it, when, and what changing it takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_core.knobs.table import KNOBS, Knob, KnobValue
from headrace_operator.rollout.revisions import ActiveRevision
from headrace_operator.service.effective_config import EffectiveConfig, KnobSource


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobExplanation:
    """One knob. `since` is a Kubernetes timestamp, empty for a default."""

    knob: str
    value: KnobValue
    source: str
    by: str
    since: str
    klass: str
    unit: str

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        named = asdict(self)
        return {**{key: value for key, value in named.items() if key != "klass"}, "class": self.klass}


def explain_config(
    service: InferenceService,
    config: EffectiveConfig,
    *,
    active: ActiveRevision | None,
    managed_fields: Iterable[Mapping[str, Any]],
) -> list[KnobExplanation]:
    """One line per knob, in the table's order. A value that the engine computes is taken from the status."""
    fields = list(managed_fields)
    shown = service.status.config.values() if service.status.config else {}
    values = {**config.wanted.config().values(), **shown, **config.wanted.values}
    return [_explain(knob, values.get(knob.name), config, active, fields) for knob in KNOBS]


def _explain(
    knob: Knob,
    value: KnobValue,
    config: EffectiveConfig,
    active: ActiveRevision | None,
    fields: list[Mapping[str, Any]],
) -> KnobExplanation:
    source = config.sources[knob.name]
    by, since = "headrace", ""
    if source is KnobSource.TUNED and active is not None:
        by, since = f"TuningRun {active.tuning_run} ({active.state.value})", _rfc3339(active)
    elif source is KnobSource.SPEC:
        by, since = manager_of(("spec", "engine", "config", knob.camel), fields)
    return KnobExplanation(
        knob=knob.camel, value=value, source=source.value, by=by, since=since, klass=knob.klass.value, unit=knob.unit
    )


def manager_of(path: tuple[str, ...], fields: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Field manager that set a field last, and when."""
    found = [entry for entry in fields if not entry.get("subresource") and _owns(entry.get("fieldsV1") or {}, path)]
    newest = max(found, key=lambda entry: entry.get("time") or "", default={})
    return newest.get("manager") or "unknown", newest.get("time") or ""


def _owns(tree: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for part in path:
        step = tree.get(f"f:{part}")
        if step is None:
            return False
        tree = step
    return True


def _rfc3339(active: ActiveRevision) -> str:
    return active.applied_at.strftime("%Y-%m-%dT%H:%M:%SZ")
