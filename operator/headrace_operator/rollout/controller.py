"""Moves a service from one revision to another: reads windows, steps the machine, writes the active revision.

The one place that writes ConfigMap NAME-tuned. Remembers nothing: a step is decided by what the API server holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headrace_api import names
from headrace_api.v1alpha1.conditions import ConditionStatus, ConditionType, find_condition
from headrace_api.v1alpha1.inferenceservice import EngineKind, InferenceService
from headrace_api.v1alpha1.tuningrun import RolloutPhase, RolloutStatus, TuningRun
from headrace_client.errors import EngineCallError
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import KnobValue
from headrace_operator.cluster.apply import Writer, Written
from headrace_operator.cluster.observe import PodView, pod_view
from headrace_operator.engines.base import EngineApi, WantedConfig
from headrace_operator.protocols import Cache
from headrace_operator.rollout import machine
from headrace_operator.rollout.measurement import WindowMetrics
from headrace_operator.rollout.revisions import (
    ActiveRevision,
    RevisionState,
    active_revision_config_map,
    read_active_revision,
)

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A run's proposal for a service. `wanted` is the service's current config, `token` that of its admin ports."""

    run: TuningRun
    service: InferenceService
    wanted: WantedConfig
    knobs: Mapping[str, KnobValue]
    measured_against: Mapping[str, KnobValue]  # the knobs that were set when the study began
    token: str

    @property
    def namespace(self) -> str:
        """Namespace of the run and of the service."""
        return self.run.metadata.namespace or ""


@dataclass(frozen=True, slots=True)
class RolloutAdvance:
    """The new status, and whether another revision became the active one."""

    status: RolloutStatus
    moved: bool = False

    @property
    def after(self) -> float | None:
        """Seconds until the next step is due; None after the last one."""
        return None if self.status.phase.terminal else machine.POLL_SECONDS


class RolloutController:
    """Starts rollouts and moves them on, one step a call. There is one per operator."""

    def __init__(
        self,
        *,
        cache: Cache,
        writer: Writer,
        engines: Mapping[EngineKind, EngineApi],
        metrics: WindowMetrics,
        now: Callable[[], datetime],
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._engines = engines
        self._metrics = metrics
        self._now = now

    def active(self, namespace: str, service: str) -> ActiveRevision | None:
        """The proposal in force on a service, or None. A record that cannot be read is logged and not used."""
        name = names.tuned_config_map(service)
        try:
            return read_active_revision(self._cache.child("ConfigMap", namespace, name))
        except ValueError as error:
            LOG.error("ConfigMap %s/%s is not used: %s", namespace, name, error)
            return None

    async def restore_abandoned(self, service: InferenceService, active: ActiveRevision | None) -> Written | None:
        """Restore what was in force before a proposal whose run is gone and cannot judge it; None if there is none."""
        if active is None or not self._abandoned(service, active):
            return None
        LOG.warning(
            "TuningRun %s is gone before its proposal was judged: the old knobs are restored", active.tuning_run
        )
        return await self._activate(service, active.before())

    async def advance(self, request: RolloutRequest) -> RolloutAdvance:
        """Take one step of a rollout, and begin it if it has not begun."""
        scene = await self._scene(request)
        status = request.run.status.rollout
        if status is None:
            return RolloutAdvance(_begin(request, scene))
        if status.phase is RolloutPhase.APPLYING:
            queue = await self._metrics.waiting(request.namespace, [pod.name for pod in status.pods])
            scene = replace(scene, waiting=queue)
        query = machine.window(status, scene)
        if query is not None:
            reading = await self._metrics.read(query, now=self._now())
            # Reading may wait for a scrape, so what is known about the engines is fetched again.
            scene = replace(await self._scene(request), reading=reading)
        step = machine.step(status, scene)
        if step.write:
            written = await self._activate(request.service, step.tuned)
            if written.error or written.conflict:
                LOG.warning("the proposal's record was not written; the step will be repeated: %s", written)
                return RolloutAdvance(status)
        return RolloutAdvance(step.status, moved=step.write)

    def _abandoned(self, service: InferenceService, active: ActiveRevision) -> bool:
        if active.state is not RevisionState.CHECKING:
            return False
        run = self._cache.run(service.metadata.namespace or "", active.tuning_run)
        return run is None or run["metadata"]["uid"] != active.run_uid or bool(run["metadata"].get("deletionTimestamp"))

    async def _activate(self, service: InferenceService, active: ActiveRevision | None) -> Written:
        return await self._writer.bring([active_revision_config_map(service, active)])

    async def _scene(self, request: RolloutRequest) -> machine.RolloutScene:
        run, service, knobs = request.run, request.service, request.knobs
        pinned = service.spec.engine.config.values()
        stable = self._stable(request)
        return machine.RolloutScene(
            now=self._now(),
            namespace=request.namespace,
            proposal=machine.ProposedChange(
                run=run.metadata.name,
                run_uid=run.metadata.uid or "",
                knobs=knobs,
                override_pinned=run.spec.override_pinned,
                pinned={name: pinned[name] for name in knobs if name in pinned},
            ),
            spec=run.spec,
            min_requests=service.spec.slo.min_requests if service.spec.slo else 1,
            pods=await self._facts_of(request, stable),
            present=frozenset(pod.uid for pod in stable),
            tuned=self.active(request.namespace, service.metadata.name),
            service_problem=_engine_problem(service),
        )

    def _stable(self, request: RolloutRequest) -> list[PodView]:
        raw = self._cache.engine_pods(request.namespace, request.service.metadata.name)
        pods = [pod for pod in map(pod_view, raw) if pod.track == names.TRACK_STABLE]
        return [pod for pod in pods if not pod.terminating and not pod.finished]

    async def _facts_of(self, request: RolloutRequest, stable: list[PodView]) -> dict[str, machine.PodFacts]:
        ready = [pod for pod in stable if pod.ready and pod.ip]
        facts = await asyncio.gather(*(self._facts(pod, request) for pod in ready))
        return {fact.uid: fact for fact in facts if fact is not None}

    async def _facts(self, pod: PodView, request: RolloutRequest) -> machine.PodFacts | None:
        live = self._engines[request.service.spec.engine.kind].live
        if live is None:
            return None
        try:
            state = await live.read(pod.ip, token=request.token)
            hot = request.wanted.hot(state.device)
        except (EngineCallError, ConfigError):
            return None
        return machine.PodFacts(
            name=pod.name,
            uid=pod.uid,
            started_at=datetime.fromtimestamp(round(state.started_at, 3), UTC),
            generation=state.generation,
            config=state.config,
            wanted=hot,
        )


def _begin(request: RolloutRequest, scene: machine.RolloutScene) -> RolloutStatus:
    status = machine.begin(scene)
    if dict(request.measured_against) == dict(request.wanted.values):
        return status
    message = "the service's config changed since the study began: the proposal was not measured against it"
    return status.model_copy(update={"phase": RolloutPhase.FAILED, "message": f"{message}; create a new TuningRun"})


def _engine_problem(service: InferenceService) -> str:
    found = find_condition(service.status.conditions, ConditionType.ENGINE_READY)
    return "" if found is None or found.status is ConditionStatus.TRUE else found.message
