"""One pass over one InferenceService: see, plan, apply, push the config, prove the route, write the status once.

The only place that orders the I/O of a service; every decision is in a pure module. A pass that finds nothing to do
writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace_api import names
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.conditions import Reason
from headrace_api.v1alpha1.inferenceservice import InferenceService, InferenceServiceStatus
from headrace_client.errors import EngineCallError
from headrace_client.resources import INFERENCE_SERVICES
from headrace_core.knobs.resolve import ConfigError
from headrace_operator.cluster.apply import Written
from headrace_operator.cluster.findings import Finding, no
from headrace_operator.cluster.fresh_status import FreshStatus
from headrace_operator.cluster.hashing import service_token
from headrace_operator.cluster.observe import (
    DeploymentView,
    PodView,
    by_age,
    cluster_ip,
    deployment_view,
    pod_view,
)
from headrace_operator.dependencies import Dependencies
from headrace_operator.engines.base import EngineProbe, WantedConfig
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.errors import SpecRefusedError
from headrace_operator.protocols import Key
from headrace_operator.rollout.config_push import DRIFT_SECONDS, ConfigPush
from headrace_operator.rollout.revisions import ActiveRevision
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.service.effective_config import EffectiveConfig, effective_config
from headrace_operator.service.objects import ServiceObjects, service_objects
from headrace_operator.service.readiness import CONFIG_PROBLEMS, Fleet, engines_ready
from headrace_operator.service.status import (
    ServiceObservation,
    changed,
    service_status,
)

LOG = logging.getLogger(__name__)
SOON = 1.0  # seconds: for engines still to be changed, or a route that has not carried a token yet
LATER = 15.0  # seconds: for problems that a person must solve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What the spec asks for, or `problem` if it cannot be carried out."""

    config: EffectiveConfig | None = None
    objects: ServiceObjects | None = None
    active: ActiveRevision | None = None
    problem: Finding | None = None
    token: str = ""


class ServiceController:
    """Reconciles InferenceServices."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._push = ConfigPush(clock=dependencies.clock)
        self._proofs: dict[Key, tuple[str, frozenset[tuple[str, int]]]] = {}
        self._fresh = FreshStatus()

    async def reconcile(self, key: Key) -> Requeue:
        """One pass. The key's object may be gone."""
        body = self._fresh.newest(key, self._dependencies.cache.service(key.namespace, key.name))
        if body is None:
            self._forget(key)
            return Requeue(gone=True)
        if body["metadata"].get("deletionTimestamp"):
            return Requeue()  # the garbage collector deletes the children by their ownerReferences
        try:
            service = InferenceService.read(body)
        except InvalidResource as error:
            return await self._unreadable(body, error)
        return await self._reconcile(key, body, service)

    async def _reconcile(self, key: Key, body: Mapping[str, Any], service: InferenceService) -> Requeue:
        wanted = self._wanted(service)
        restored = await self._dependencies.rollout.restore_abandoned(service, wanted.active)
        if restored is not None:
            # The cache shows the restored record soon; that event, or this delay, brings the next pass.
            return Requeue(after=SOON, failed=restored.error or restored.conflict)
        written = await self._write(service, wanted)
        seen = await self._observe(key, service, wanted, written)
        status = service_status(service, seen, now=self._dependencies.now())
        await self._save(body, service, status)
        return self._again(key, service, seen, written)

    def _wanted(self, service: InferenceService) -> _Wanted:
        dependencies, metadata = self._dependencies, service.metadata
        namespace = metadata.namespace or ""
        token = service_token(dependencies.settings.root_token, namespace=namespace, service=metadata.name)
        active = dependencies.rollout.active(namespace, metadata.name)
        try:
            config = effective_config(service, active)
            target = service_objects(service, config.wanted, images=dependencies.settings.images, token=token)
        except ConfigError as error:
            listed = "; ".join(f"spec.engine.config.{problem}" for problem in error.problems)
            return _Wanted(active=active, token=token, problem=no(Reason.INVALID_CONFIG, listed))
        except SpecRefusedError as error:
            return _Wanted(active=active, token=token, problem=no(error.reason, error.message))
        return _Wanted(config=config, objects=target, active=active, token=token)

    async def _write(self, service: InferenceService, wanted: _Wanted) -> Written:
        if wanted.objects is None:
            return Written()
        missing = any(pod.waiting in CONFIG_PROBLEMS for pod in self._pods(service))
        return await self._dependencies.writer.bring(wanted.objects.objects, distrust=missing)

    def _pods(self, service: InferenceService) -> list[PodView]:
        raw = self._dependencies.cache.engine_pods(service.metadata.namespace or "", service.metadata.name)
        pods = (pod_view(body) for body in raw)
        return by_age(pod for pod in pods if pod.track == names.TRACK_STABLE)

    def _deployment(self, service: InferenceService) -> DeploymentView | None:
        name = names.stable_deployment(service.metadata.name)
        body = self._dependencies.cache.child("Deployment", service.metadata.namespace or "", name)
        return deployment_view(body) if body else None

    async def _observe(
        self, key: Key, service: InferenceService, wanted: _Wanted, written: Written
    ) -> ServiceObservation:
        cache = self._dependencies.cache
        fleet = self._fleet(service, wanted, self._deployment(service))
        if wanted.config is not None:
            fleet = await self._pushed(service, fleet, wanted.config.wanted, wanted.token)
        else:
            fleet = _as_is(fleet)
        address = cluster_ip(cache.child("Service", key.namespace, names.service_name(key.name)))
        problem = await self._prove(key, service, fleet, address)
        return ServiceObservation(
            fleet=fleet,
            config=wanted.config,
            spec_problem=wanted.problem,
            conflict=written.conflict,
            api_error=written.error,
            cluster_ip=address,
            routable=not problem,
            route_problem=problem,
            active=wanted.active,
        )

    def _fleet(self, service: InferenceService, wanted: _Wanted, deployment: DeploymentView | None) -> Fleet:
        # Without a valid spec, the existing pods are judged by the existing revision.
        there = deployment.revision if deployment else ""
        return Fleet(
            pods=self._pods(service),
            replicas=service.spec.replicas,
            revision=wanted.objects.template_revision if wanted.objects else there,
            engine=DEFINITIONS[service.spec.engine.kind],
            probed={},
            deployment=deployment,
        )

    async def _pushed(self, service: InferenceService, fleet: Fleet, wanted: WantedConfig, token: str) -> Fleet:
        gone = {pod.uid for pod in fleet.pods} - {pod.uid for pod in fleet.live}
        self._push.forget(gone)
        engines = self._dependencies.engines[service.spec.engine.kind]
        probed = await self._push.bring(engines, fleet.current, wanted, token=token)
        return replace(fleet, probed=probed)

    async def _prove(self, key: Key, service: InferenceService, fleet: Fleet, address: str) -> str:
        """Why no token has come through the Service yet; empty once one has come from this revision's pods."""
        if not engines_ready(fleet).holds:
            return "the engines are not ready"
        if not address:
            return "the Service has no address yet"
        ready = frozenset(pod.identity for pod in fleet.ready)
        revision, proven = self._proofs.get(key, ("", frozenset()))
        if revision == fleet.revision and ready & proven:
            return ""
        try:
            engines = self._dependencies.engines[service.spec.engine.kind]
            await engines.one_token(fleet.engine.url(address), model=service.served_name)
        except EngineCallError as error:
            return f"no token through the Service: {error}"
        self._proofs[key] = (fleet.revision, ready)
        return ""

    async def _save(self, body: Mapping[str, Any], service: InferenceService, status: InferenceServiceStatus) -> None:
        if status == service.status:
            return
        news = changed(service.status.conditions, status.conditions)
        whole = {**body, "status": status.to_kube()}
        answer = await self._dependencies.kube.replace_status(INFERENCE_SERVICES, whole)
        self._fresh.wrote(_key(service), body, answer)
        for item in news:
            LOG.info("%s: %s=%s %s: %s", service.key, item.type, item.status.value, item.reason, item.message)
        await self._dependencies.events.conditions(body, news)

    async def _unreadable(self, body: Mapping[str, Any], error: InvalidResource) -> Requeue:
        """Report a spec that the schema accepted and the models reject, and touch nothing else."""
        finding = no(Reason.INVALID_SPEC, "; ".join(str(problem) for problem in error.problems))
        replicas = (body.get("spec") or {}).get("replicas")
        readable = {"replicas": replicas} if isinstance(replicas, int) else {}
        bare = {**body, "spec": {"model": {"uri": "file:///unreadable"}, **readable}}
        try:
            service = InferenceService.read(bare)
        except InvalidResource:
            service = InferenceService.read({**bare, "status": {}})
        there = self._deployment(service)
        fleet = _as_is(self._fleet(service, _Wanted(problem=finding), there))
        seen = ServiceObservation(fleet=fleet, spec_problem=finding)
        await self._save(body, service, service_status(service, seen, now=self._dependencies.now()))
        return Requeue()

    def _again(self, key: Key, service: InferenceService, seen: ServiceObservation, written: Written) -> Requeue:
        runs = self._dependencies.cache.runs_of(key.namespace, key.name)
        wake = tuple(Key(names.TUNING_RUN_KIND, key.namespace, run["metadata"]["name"]) for run in runs)
        if written.error:
            return Requeue(failed=written.error, wake=wake)
        return Requeue(after=_delay(seen), wake=wake if service.status.revision != _revision(seen) else ())

    def _forget(self, key: Key) -> None:
        self._proofs.pop(key, None)
        self._dependencies.writer.forget(key.namespace, [("Secret", names.admin_secret(key.name))])


def _as_is(fleet: Fleet) -> Fleet:
    """The fleet under no valid spec: whatever config its engines have counts as wanted."""
    return replace(fleet, probed={pod.uid: EngineProbe(in_force=True) for pod in fleet.ready})


def _delay(seen: ServiceObservation) -> float | None:
    if seen.conflict:
        return LATER
    if seen.spec_problem is not None or not seen.fleet.ready:
        return None  # an event will come
    engine = engines_ready(seen.fleet)
    if engine.reason is Reason.CONFIG_REFUSED:
        return LATER
    if engine.reason in (Reason.CONFIG_PENDING, Reason.ENGINE_UNREACHABLE) or (engine.holds and not seen.routable):
        return SOON
    return DRIFT_SECONDS


def _key(service: InferenceService) -> Key:
    return Key(names.INFERENCE_SERVICE_KIND, service.metadata.namespace or "", service.metadata.name)


def _revision(seen: ServiceObservation) -> str | None:
    return seen.config.wanted.revision if seen.config else None
