"""Reasons for a TuningRun not to begin: waits, which end by themselves, and refusals, which do not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.records import RunPhase
from headrace_api.v1alpha1.search import KnobRange
from headrace_api.v1alpha1.tuningrun import ApplyPolicy, TuningRun
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.errors import SpecRefusedError


def check(run: TuningRun, service: InferenceService) -> None:
    """Raise `SpecRefusedError` if the run can never do on this service what its spec asks for."""
    pinned = service.spec.engine.config.values()
    if not run.spec.override_pinned:
        _check_pinned(run, {item.knob.name for item in run.spec.knobs} & set(pinned))
    _check_ceilings(run.spec.knobs, DEFINITIONS[service.spec.engine.kind].ceilings(pinned, on_gpu=service.on_gpu))
    _check_slo(run, service)


def _check_pinned(run: TuningRun, names: Iterable[str]) -> None:
    listed = [item.name for item in run.spec.knobs if item.knob.name in set(names)]
    if listed:
        raise SpecRefusedError(
            Reason.PINNED_KNOB,
            f"spec.knobs: {', '.join(listed)} pinned by spec.engine.config of InferenceService "
            f"{run.spec.service_ref.name}; remove it there, or set overridePinned: true here",
        )


def _check_ceilings(knobs: Iterable[KnobRange], ceilings: Mapping[str, int]) -> None:
    for item in knobs:
        ceiling = ceilings.get(item.knob.name)
        highest = _highest(item)
        if ceiling is not None and highest is not None and highest > ceiling:
            raise SpecRefusedError(
                Reason.INVALID_CONFIG,
                f"spec.knobs: {item.name}: {highest:g} exceeds {ceiling}, the value that the engine starts with; lower "
                f"the range, or raise spec.engine.config.{item.name} of the InferenceService, which restarts it",
            )


def _highest(item: KnobRange) -> float | None:
    if item.max is not None:
        return item.max
    numbers = [value for value in item.choices or () if isinstance(value, int | float)]
    return max(numbers, default=None)


def _check_slo(run: TuningRun, service: InferenceService) -> None:
    if run.spec.slo is None and service.spec.slo is None:
        raise SpecRefusedError(
            Reason.NO_SLO, "neither spec.slo here nor spec.slo of the InferenceService is set; set one of them"
        )
    if run.spec.apply is ApplyPolicy.AUTO and service.spec.slo is None:
        raise SpecRefusedError(
            Reason.NO_SLO,
            "apply: Auto compares the service before and after by its own SLO; set spec.slo of the InferenceService",
        )


def first_in_line(run: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """Name of the run of the same service that must go first, or an empty string if it is this run's turn.

    One at a time, oldest first: two studies would change each other's baseline.
    """
    open_runs = [body for body in others if not _over(body)]
    if _begun(run):
        return ""
    ahead = [body for body in open_runs if _begun(body) or _age(body) < _age(run)]
    ahead = [body for body in ahead if body["metadata"]["uid"] != run["metadata"]["uid"]]
    return min(ahead, key=_age)["metadata"]["name"] if ahead else ""


def _age(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"].get("creationTimestamp") or "", body["metadata"]["name"]


def _phase(body: Mapping[str, Any]) -> str:
    return (body.get("status") or {}).get("phase") or RunPhase.PENDING.value


def _over(body: Mapping[str, Any]) -> bool:
    return _phase(body) in (RunPhase.COMPLETED.value, RunPhase.FAILED.value)


def _begun(body: Mapping[str, Any]) -> bool:
    return _phase(body) != RunPhase.PENDING.value
