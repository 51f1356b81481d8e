"""The CustomResourceDefinitions: schema from the models, and what models cannot say (columns, scale, short names)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_api.base import CustomResource
from headrace_api.names import GROUP, VERSION
from headrace_api.structural import root_schema
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import TuningRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One custom resource. `columns` are (name, type, JSONPath, priority)."""

    model: type[CustomResource]
    short_name: str
    columns: tuple[tuple[str, str, str, int], ...]
    scale: dict[str, str] = field(default_factory=dict)


_AGE = ("Age", "date", ".metadata.creationTimestamp", 0)

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        model=InferenceService,
        short_name="infsvc",
        columns=(
            ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
            ("Replicas", "integer", ".status.readyReplicas", 0),
            ("Revision", "string", ".status.revision", 0),
            ("Model", "string", ".spec.model.uri", 1),
            ("Tuned by", "string", ".status.tuned.tuningRun", 1),
            ("URL", "string", ".status.endpoint.url", 1),
            _AGE,
        ),
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    Definition(
        model=TuningRun,
        short_name="tunerun",
        columns=(
            ("Phase", "string", ".status.phase", 0),
            ("Trials", "string", ".status.trials.progress", 0),
            ("Best", "number", ".status.best.score", 0),
            ("Verdict", "string", ".status.verdict", 0),
            ("Service", "string", ".spec.serviceRef.name", 1),
            ("Message", "string", ".status.message", 1),
            _AGE,
        ),
    ),
)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CRD as JSON values, ready to be applied."""
    model = definition.model
    singular = model.KIND.lower()
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root_schema(model)},
        "subresources": {"status": {}, **({"scale": definition.scale} if definition.scale else {})},
        "additionalPrinterColumns": [_column(*column) for column in definition.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": model.KIND,
                "listKind": f"{model.KIND}List",
                "plural": model.PLURAL,
                "singular": singular,
                "shortNames": [definition.short_name],
                "categories": ["headrace"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _column(name: str, kind: str, path: str, priority: int) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": priority} if priority else column
