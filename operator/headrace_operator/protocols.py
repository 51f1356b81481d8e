"""How the reconcilers reach the cluster: through `headrace_client` and Kopf's indexes, or doubles in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace_client.resources import ApiResource


class Key(NamedTuple):
    """One custom resource, as the work queue names it."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Cache(Protocol):
    """The cluster as last seen, without a call to the API server. Always a little stale."""

    def service(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """InferenceService."""

    def run(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """TuningRun."""

    def runs_of(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        """TuningRuns that refer to an InferenceService."""

    def child(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Deployment, Service, ConfigMap or Job with our label."""

    def engine_pods(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        """Engine pods of an InferenceService, of every track."""

    def run_pods(self, namespace: str, run: str) -> Sequence[Mapping[str, Any]]:
        """Pods of a TuningRun: the trial's and the Job's."""


class KubeApi(Protocol):
    """The part of `headrace_client.kube.Kube` that reconcilers use: its writes, and `get`."""

    async def get(self, res: ApiResource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The object, or None."""

    async def apply(self, body: Mapping[str, Any], *, field_manager: str, force: bool = True) -> dict[str, Any]:
        """Server-side apply."""

    async def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object. Raises `Conflict` if it exists."""

    async def replace_status(self, res: ApiResource, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status."""

    async def delete(self, res: ApiResource, name: str, namespace: str | None = None) -> None:
        """Delete the object and what it owns; a missing object is fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQuery:
    """One window over some pods, each at one config generation. Times in Unix seconds."""

    namespace: str
    generations: Mapping[str, int]  # by pod name
    start: float
    end: float
