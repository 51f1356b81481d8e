"""One pass over a TuningRun that has not ended: wait for its turn, prepare a trial, watch the Job, propose.

Each stage decides from what it finds in the cluster. None remembers anything, so a new operator continues where the
last one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace_api import names
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import RunPhase, StudyVerdict
from headrace_api.v1alpha1.tuningrun import ApplyPolicy, RolloutStatus, TuningRun
from headrace_client.errors import EngineCallError
from headrace_client.resources import DEPLOYMENTS, ApiResource
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import KnobValue
from headrace_operator.cluster.findings import Finding, no, yes
from headrace_operator.cluster.hashing import service_token, trial_token
from headrace_operator.cluster.observe import (
    PodView,
    by_age,
    cluster_ip,
    deployment_view,
    job_view,
    pod_view,
    timestamp,
)
from headrace_operator.dependencies import Dependencies
from headrace_operator.engines.base import EngineProbe, LiveConfigApi
from headrace_operator.engines.registry import DEFINITIONS
from headrace_operator.errors import SpecRefusedError
from headrace_operator.protocols import Key
from headrace_operator.rollout.controller import RolloutAdvance, RolloutRequest
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.service.effective_config import EffectiveConfig, effective_config
from headrace_operator.service.objects import service_objects
from headrace_operator.service.readiness import Fleet, engines_ready
from headrace_operator.service.status import is_true
from headrace_operator.tuning.checks import check, first_in_line
from headrace_operator.tuning.job_objects import JobUrls, job_objects
from headrace_operator.tuning.status import (
    RunObservation,
    rollout_phase,
)
from headrace_operator.tuning.trial_objects import trial_objects

LOG = logging.getLogger(__name__)
WAIT_SECONDS = 5.0  # an event usually brings the next pass sooner
VALID = yes(Reason.VALID, "every check passed")
NO_TRIAL = no(Reason.PENDING, "the trial has not begun")
TRIAL_OVER = no(Reason.FINISHED, "the trial is over; its pod is removed")
RECORDS_SECONDS = 30.0  # the Job's end may be seen before its last record: two watches


class RunEnded(Exception):  # noqa: N818  (control flow of this package)
    """The run fails for good."""

    def __init__(self, message: str, *, spec: Finding = VALID, job_failed: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.spec = spec
        self.job_failed = job_failed


class RunWaits(Exception):  # noqa: N818
    """The run cannot continue yet."""

    def __init__(self, message: str, *, phase: RunPhase = RunPhase.PENDING, spec: Finding = VALID) -> None:
        super().__init__(message)
        self.message = message
        self.phase = phase
        self.spec = spec
        self.trial = NO_TRIAL


async def remove_owned(dependencies: Dependencies, resource: ApiResource, run: TuningRun, name: str) -> None:
    """Delete the object `name`, if it exists and the run owns it."""
    there = dependencies.cache.child(resource.kind, run.metadata.namespace or "", name)
    owners = there["metadata"].get("ownerReferences") or () if there else ()
    ours = any(owner["uid"] == run.metadata.uid for owner in owners)
    if there and ours and not there["metadata"].get("deletionTimestamp"):
        LOG.info("delete %s %s/%s: the study is over", resource.kind, run.metadata.namespace, name)
        await dependencies.kube.delete(resource, name, run.metadata.namespace)


class RunPass:
    """One pass over a run that is not over. Methods are stages, in the order of a run's life."""

    def __init__(
        self, dependencies: Dependencies, run: TuningRun, body: Mapping[str, Any], records: StudyRecords
    ) -> None:
        self._dependencies = dependencies
        self._run = run
        self._body = body
        self._records = records
        self._namespace = run.metadata.namespace or ""
        self._name = run.metadata.name

    async def go(self) -> tuple[RunObservation, Requeue]:
        """Find the stage that the run is in, and carry it out."""
        service = self._service()
        config = self._config(service)
        study = self._records.study
        if study is not None and study.phase is RunPhase.FAILED:
            raise RunEnded(study.message or "the study failed", job_failed=True)
        if study is not None and study.verdict is not None:
            return await self._after_study(service, config)
        return await self._study(service, config)

    def _service(self) -> InferenceService:
        name = self._run.spec.service_ref.name
        body = self._dependencies.cache.service(self._namespace, name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            missing = no(Reason.SERVICE_NOT_FOUND, f"spec.serviceRef: InferenceService {name} does not exist here")
            if self._run.status.phase is RunPhase.PENDING:
                raise RunWaits(f"waiting for InferenceService {name}", spec=missing)
            raise RunEnded(f"InferenceService {name} was deleted", spec=missing)
        try:
            return InferenceService.read(body)
        except InvalidResource as error:
            raise RunWaits(f"waiting for InferenceService {name}, whose spec is not valid: {error}") from None

    def _config(self, service: InferenceService) -> EffectiveConfig:
        try:
            return effective_config(service, self._dependencies.rollout.active(self._namespace, service.metadata.name))
        except ConfigError as error:
            raise RunWaits(f"waiting for a valid config of InferenceService {service.metadata.name}: {error}") from None

    # -- the study

    async def _study(self, service: InferenceService, config: EffectiveConfig) -> tuple[RunObservation, Requeue]:
        try:
            check(self._run, service)
            template = service_objects(
                service, config.wanted, images=self._dependencies.settings.images, token=self._service_token(service)
            )
        except SpecRefusedError as error:
            raise RunEnded(error.message, spec=no(error.reason, error.message)) from None
        if self._run.status.phase is RunPhase.PENDING:
            self._wait_for_turn(service)
        self._check_trial_template(template.template_revision)
        await self._make(trial_objects(
            self._run,
            service,
            config.wanted,
            images=self._dependencies.settings.images,
            token=self._trial_token(),
            revision=template.template_revision,
        ))  # fmt: skip
        trial = await self._trial(service)
        job = self._dependencies.cache.child("Job", self._namespace, names.tuner_name(self._name))
        if job is None and not trial.holds:
            return self._seen(RunPhase.PREPARING, f"waiting for the trial: {trial.message}", trial), Requeue(
                after=WAIT_SECONDS
            )
        if job is None:
            await self._make(job_objects(self._run, self._urls(service), images=self._dependencies.settings.images))
            return self._seen(RunPhase.PREPARING, "the tuner is starting", trial), Requeue(after=WAIT_SECONDS)
        return self._watch(job, trial), Requeue(after=WAIT_SECONDS)

    def _wait_for_turn(self, service: InferenceService) -> None:
        name = service.metadata.name
        if not self._dependencies.settings.prometheus_url:
            raise RunWaits("waiting for a Prometheus: set prometheus.url in the chart's values")
        ahead = first_in_line(self._body, self._dependencies.cache.runs_of(self._namespace, name))
        if ahead:
            raise RunWaits(f"waiting for TuningRun {ahead}, which tunes InferenceService {name} first")
        if not is_true(service.status.conditions, ConditionType.READY):
            ready = find_condition(service.status.conditions, ConditionType.READY)
            why = ready.message if ready else "it has no status yet"
            raise RunWaits(f"waiting for InferenceService {name} to be Ready: {why}")

    def _check_trial_template(self, revision: str) -> None:
        there = self._dependencies.cache.child("Deployment", self._namespace, names.trial_name(self._name))
        if there is None:
            return
        began = deployment_view(there).revision
        if began != revision:
            raise RunEnded(
                f"the service's pod template changed during the study ({began} -> {revision}): its trials say nothing "
                "about the new one; create a new TuningRun"
            )

    async def _make(self, objects: tuple[dict[str, Any], ...]) -> None:
        """Create what is missing. Existing objects stay: trials are compared with the baseline that they began with."""
        missing = [body for body in objects if self._missing(body)]
        written = await self._dependencies.writer.bring(missing)
        if written.conflict:
            raise RunEnded(written.conflict)
        if written.error:
            raise RunWaits(f"a write failed and is tried again: {written.error}", phase=RunPhase.PREPARING)

    def _missing(self, body: Mapping[str, Any]) -> bool:
        there = self._dependencies.cache.child(body["kind"], self._namespace, body["metadata"]["name"])
        owners = there["metadata"].get("ownerReferences") or () if there else ()
        return not any(owner["uid"] == self._run.metadata.uid for owner in owners)

    async def _trial(self, service: InferenceService) -> Finding:
        there = self._dependencies.cache.child("Deployment", self._namespace, names.trial_name(self._name))
        pods = by_age(pod for pod in self._pods(names.ENGINE_CONTAINER) if pod.track == names.TRACK_TRIAL)
        fleet = Fleet(
            pods=pods,
            replicas=1,
            revision=deployment_view(there).revision if there else "",
            engine=DEFINITIONS[service.spec.engine.kind],
            probed={},
            deployment=deployment_view(there) if there else None,
        )
        live = self._dependencies.engines[service.spec.engine.kind].live
        probed = {pod.uid: await self._probe(live, pod) for pod in fleet.ready}
        return engines_ready(replace(fleet, probed=probed))

    def _pods(self, container: str) -> list[PodView]:
        return [pod_view(body, container) for body in self._dependencies.cache.run_pods(self._namespace, self._name)]

    async def _probe(self, live: LiveConfigApi | None, pod: PodView) -> EngineProbe:
        if live is None:
            return EngineProbe(in_force=True)
        try:
            state = await live.read(pod.ip, token=self._trial_token())
        except EngineCallError as error:
            return EngineProbe(unreachable=str(error))
        return EngineProbe(state=state, in_force=True)

    def _urls(self, service: InferenceService) -> JobUrls:
        cache, engine = self._dependencies.cache, DEFINITIONS[service.spec.engine.kind]
        trial = cluster_ip(cache.child("Service", self._namespace, names.trial_name(self._name)))
        stable = cluster_ip(cache.child("Service", self._namespace, names.service_name(service.metadata.name)))
        if not (trial and stable):
            raise RunWaits("waiting for the addresses of the Services", phase=RunPhase.PREPARING)
        return JobUrls(
            trial=engine.url(trial),
            trial_admin=engine.admin_url(trial),
            service=engine.url(stable),
            prometheus=self._dependencies.settings.prometheus_url,
        )

    def _watch(self, job: Mapping[str, Any], trial: Finding) -> RunObservation:
        seen, study = job_view(job), self._records.study
        if seen.failed or (seen.succeeded and self._old(seen.ended_at)):
            why = self._last_words() or seen.failed or "it ended without a verdict"
            raise RunEnded(f"the tuning Job failed: {why}", job_failed=True)
        if study is None:
            return self._seen(RunPhase.PREPARING, self._last_words() or "the tuner is starting", trial)
        return self._seen(study.phase, study.message, trial)

    def _old(self, ended_at: str) -> bool:
        return not ended_at or (self._dependencies.now() - timestamp(ended_at)).total_seconds() > RECORDS_SECONDS

    def _last_words(self) -> str:
        """How the Job's newest failed pod ended, or why its newest stuck pod waits; empty if neither exists."""
        pods = by_age(pod for pod in self._pods(names.TUNER_CONTAINER) if not pod.track)
        said = [pod for pod in pods if pod.exited is not None and pod.exited.code != 0]
        if said and said[-1].exited is not None:
            ended = said[-1].exited
            return f"pod {said[-1].name} exited with code {ended.code}: {ended.message or ended.reason}"
        stuck = [pod for pod in pods if pod.unschedulable or pod.waiting_message]
        return f"pod {stuck[-1].name}: {stuck[-1].unschedulable or stuck[-1].waiting_message}" if stuck else ""

    # -- the proposal

    async def _after_study(self, service: InferenceService, config: EffectiveConfig) -> tuple[RunObservation, Requeue]:
        await remove_owned(self._dependencies, DEPLOYMENTS, self._run, names.trial_name(self._name))
        study = self._records.study
        proposal = study.proposal if study and study.verdict is StudyVerdict.IMPROVED else None
        if proposal is None or (self._run.spec.apply is not ApplyPolicy.AUTO and self._run.status.rollout is None):
            return self._seen(RunPhase.COMPLETED, study.message if study else "", TRIAL_OVER), Requeue()
        advance = await self._advance(service, config, proposal.knobs.values())
        phase = rollout_phase(advance.status)
        wake = (Key(names.INFERENCE_SERVICE_KIND, self._namespace, service.metadata.name),) if advance.moved else ()
        seen = self._seen(phase, advance.status.message, TRIAL_OVER, advance.status)
        return seen, Requeue(after=advance.after, wake=wake)

    async def _advance(
        self, service: InferenceService, config: EffectiveConfig, knobs: Mapping[str, KnobValue]
    ) -> RolloutAdvance:
        request = RolloutRequest(
            run=self._run,
            service=service,
            wanted=config.wanted,
            knobs=knobs,
            measured_against=self._measured_against(service, config),
            token=self._service_token(service),
        )
        return await self._dependencies.rollout.advance(request)

    def _measured_against(self, service: InferenceService, config: EffectiveConfig) -> Mapping[str, KnobValue]:
        """The knobs that the trial began with; once a rollout has begun, the service's own."""
        there = self._dependencies.cache.child("ConfigMap", self._namespace, names.trial_name(self._name))
        if there is None or self._run.status.rollout is not None:
            return config.wanted.values
        return DEFINITIONS[service.spec.engine.kind].config_values(there["data"])

    def _seen(
        self, phase: RunPhase, message: str, trial: Finding, rollout: RolloutStatus | None = None
    ) -> RunObservation:
        return RunObservation(
            phase=phase, message=message, spec=VALID, trial=trial, records=self._records, rollout=rollout
        )

    def _service_token(self, service: InferenceService) -> str:
        root = self._dependencies.settings.root_token
        return service_token(root, namespace=self._namespace, service=service.metadata.name)

    def _trial_token(self) -> str:
        return trial_token(self._dependencies.settings.root_token, namespace=self._namespace, run=self._name)
