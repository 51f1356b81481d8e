"""`Cache` over Kopf's indexes. An index maps a key to the objects indexed under it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names

Body = Mapping[str, Any]
Index = Mapping[Any, Collection[Body]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCache:
    """See `protocols.Cache`. The functions below make the keys."""

    services: Index
    runs: Index
    runs_by_service: Index
    children: Index
    engine_pods_index: Index
    run_pods_index: Index

    def service(self, namespace: str, name: str) -> Body | None:
        """InferenceService."""
        return _only(self.services, (namespace, name))

    def run(self, namespace: str, name: str) -> Body | None:
        """TuningRun."""
        return _only(self.runs, (namespace, name))

    def runs_of(self, namespace: str, service: str) -> list[Body]:
        """TuningRuns that refer to an InferenceService."""
        return _all(self.runs_by_service, (namespace, service))

    def child(self, kind: str, namespace: str, name: str) -> Body | None:
        """Deployment, Service, ConfigMap or Job with our label."""
        return _only(self.children, (kind, namespace, name))

    def engine_pods(self, namespace: str, service: str) -> list[Body]:
        """Engine pods of an InferenceService, of every track."""
        return _all(self.engine_pods_index, (namespace, service))

    def run_pods(self, namespace: str, run: str) -> list[Body]:
        """Pods of a TuningRun: the trial's and the Job's."""
        return _all(self.run_pods_index, (namespace, run))

    def all_services(self) -> list[Body]:
        """Every InferenceService."""
        return [body for key in self.services for body in self.services[key]]

    def all_runs(self) -> list[Body]:
        """Every TuningRun."""
        return [body for key in self.runs for body in self.runs[key]]


def object_key(body: Body) -> tuple[str, str]:
    """Namespace and name."""
    return body["metadata"]["namespace"], body["metadata"]["name"]


def label_key(body: Body, label: str) -> tuple[str, str] | None:
    """Namespace and the value of a label."""
    value = (body["metadata"].get("labels") or {}).get(label)
    return (body["metadata"]["namespace"], value) if value else None


def run_service_key(body: Body) -> tuple[str, str] | None:
    """Namespace and InferenceService of a TuningRun."""
    name = ((body.get("spec") or {}).get("serviceRef") or {}).get("name")
    return (body["metadata"]["namespace"], name) if name else None


def owners(body: Body) -> dict[str, str]:
    """The custom resources that one of our objects belongs to, by its labels: kind to name."""
    labels = body["metadata"].get("labels") or {}
    found = {
        names.INFERENCE_SERVICE_KIND: labels.get(names.SERVICE_LABEL),
        names.TUNING_RUN_KIND: labels.get(names.TUNING_RUN_LABEL),
    }
    return {kind: name for kind, name in found.items() if name}


def slim(body: Body) -> dict[str, Any]:
    """The object without managedFields, which are large and which no decision reads."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": metadata}


def _all(index: Index, key: Any) -> list[Body]:
    return list(index[key]) if key in index else []


def _only(index: Index, key: Any) -> Body | None:
    found = _all(index, key)
    return found[0] if found else None
