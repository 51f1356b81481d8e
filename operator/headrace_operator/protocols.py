"""What the reconcilers ask of the world: `headrace_client` and Kopf's indexes, or doubles in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from headrace_client.engine import EngineState, Keep, SloValues
from headrace_client.resources import ApiResource
from headrace_core.knobs.table import KnobValue
from headrace_operator.rollout.analysis import WindowReading


class Key(NamedTuple):
    """What the queue holds: one custom resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Cache(Protocol):
    """The cluster as last seen, without asking it. Always a little stale."""

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
    """The writes of `headrace_client.kube.Kube`, and the one read."""

    async def get(self, res: ApiResource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """The object, or None."""

    async def apply(self, body: Mapping[str, Any], *, field_manager: str, force: bool = True) -> dict[str, Any]:
        """Server-side apply."""

    async def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create."""

    async def replace_status(self, res: ApiResource, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status."""

    async def delete(self, res: ApiResource, name: str, namespace: str | None = None) -> None:
        """Delete, with what it owns; a missing object is fine."""


class EngineApi(Protocol):
    """Running engines."""

    async def read(self, address: str, *, token: str) -> EngineState:
        """Config in force. Raises `EngineError`."""

    async def change(
        self, address: str, *, token: str, knobs: Mapping[str, KnobValue], slo: SloValues | Keep | None, revision: str,
        generation: int,
    ) -> EngineState:  # fmt: skip
        """Change hot knobs and the SLO set if the generation is still the given one. Raises `EngineError`."""

    async def one_token(self, url: str, *, model: str) -> None:
        """Generate one token through a Service. Raises `EngineError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQuery:
    """One window on some pods, each under one config generation. Times in Unix seconds."""

    namespace: str
    generations: Mapping[str, int]  # by pod name
    start: float
    end: float


class WindowMetrics(Protocol):
    """Prometheus."""

    async def read(self, query: WindowQuery, *, now: datetime) -> WindowReading:
        """What the window showed, or why that cannot be said (yet)."""

    async def waiting(self, namespace: str, pods: Sequence[str]) -> float | None:
        """Requests in the queues of some pods now, by pod name; None where that is not known."""
