"""ConfigMap NAME-tuned: the proposal in force on a service, and what to go back to if it is not kept.

This one object decides which config is wanted; everything else follows from it. It has a proposal or none, so whenever
the operator is killed, exactly one config is wanted when it comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService, TunedStatus
from headrace_api.v1alpha1.knobs import EngineKnobs
from headrace_core.knobs.table import KnobValue
from headrace_operator.cluster.owned import Owned


class RevisionState(StrEnum):
    """How far a proposal has got."""

    CHECKING = "Checking"  # in force and compared with before; undone unless it proves better
    KEPT = "Kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRevision:
    """One proposal. Knobs by snake_case name."""

    tuning_run: str
    run_uid: str
    state: RevisionState
    knobs: dict[str, KnobValue]
    applied_at: datetime
    override_pinned: bool = False
    pinned: dict[str, KnobValue] = field(default_factory=dict)  # spec values that the proposal overrides
    previous: dict[str, KnobValue] = field(default_factory=dict)  # effective values of the same knobs before
    restore: dict[str, Any] | None = None  # the record that was in force before, as JSON

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        dumped: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return dumped

    def status(self) -> TunedStatus:
        """Its form in the status of the InferenceService."""
        return TunedStatus(
            tuning_run=self.tuning_run,
            knobs=EngineKnobs.of(self.knobs),
            override_pinned=self.override_pinned,
            applied_at=self.applied_at,
            previous=EngineKnobs.of(self.previous),
        )

    def before(self) -> ActiveRevision | None:
        """The record to go back to; None for the service's own config."""
        return None if self.restore is None else _ADAPTER.validate_python(self.restore)


_ADAPTER = TypeAdapter(ActiveRevision)


def read_active_revision(config_map: Mapping[str, Any] | None) -> ActiveRevision | None:
    """The proposal in force, or None. Raises ValueError for content that is not a record."""
    text = ((config_map or {}).get("data") or {}).get(names.TUNED_KEY)
    if not text:
        return None
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or names.TUNED_KEY
        raise ValueError(f"key {names.TUNED_KEY}: {where}: {first['msg']}") from None


def active_revision_config_map(service: InferenceService, active: ActiveRevision | None) -> dict[str, Any]:
    """The ConfigMap that makes `active` the revision in force; None: the service's own config."""
    name = service.metadata.name
    owned = Owned(service.metadata.namespace or "", names.service_labels(name), service.owner_reference())
    data = {} if active is None else {names.TUNED_KEY: json.dumps(active.to_json(), sort_keys=True)}
    return owned.config_map(names.tuned_config_map(name), data)
