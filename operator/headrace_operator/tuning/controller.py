"""One pass over one TuningRun: wait for its turn, prepare a trial, watch the Job, roll the proposal out, tidy up.

Every stage looks at what is there and says what it means; none remembers anything, so a pass by a new operator goes on
where the last one was.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headrace_api import names
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.conditions import ConditionStatus, ConditionType, Reason, find_condition
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import RunPhase, StudyVerdict
from headrace_api.v1alpha1.slo import SloSpec
from headrace_api.v1alpha1.tuningrun import ApplyPolicy, RolloutPhase, RolloutStatus, TuningRun
from headrace_client.engine import admin_url
from headrace_client.errors import EngineCallError
from headrace_client.resources import DEPLOYMENTS, JOBS, TUNING_RUNS
from headrace_core.knobs.resolve import ConfigError
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
from headrace_operator.errors import SpecRefusedError
from headrace_operator.protocols import Key
from headrace_operator.rollout import machine
from headrace_operator.rollout.revisions import ActiveRevision, read_active_revision
from headrace_operator.service.controller import Dependencies, FreshStatus, Requeue
from headrace_operator.service.effective_config import EffectiveConfig, effective_config
from headrace_operator.service.model_sources import model_argument
from headrace_operator.service.objects import service_objects, tuned_config_map
from headrace_operator.service.readiness import EngineProbe, Fleet, engines_ready
from headrace_operator.service.status import changed, is_true, service_url
from headrace_operator.tuning.checks import check, first_in_line
from headrace_operator.tuning.status import (
    RunObservation,
    read_records,
    rollout_phase,
    run_status,
)
from headrace_operator.tuning.trial_objects import JobUrls, job_objects, trial_objects

LOG = logging.getLogger(__name__)
WAIT_SECONDS = 5.0  # for what announces itself by an event as well
VALID = yes(Reason.VALID, "every check passed")
NO_TRIAL = no(Reason.PENDING, "the trial has not begun")
TRIAL_OVER = no(Reason.FINISHED, "the trial is over; its pod is removed")
RECORDS_SECONDS = 30.0  # the Job's end may be seen before its last record: two watches


class _Ended(Exception):  # noqa: N818  (control flow of one module)
    """The run fails for good."""

    def __init__(self, message: str, *, spec: Finding = VALID, job_failed: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.spec = spec
        self.job_failed = job_failed


class _Waits(Exception):  # noqa: N818
    """The run cannot go on yet."""

    def __init__(self, message: str, *, phase: RunPhase = RunPhase.PENDING, spec: Finding = VALID) -> None:
        super().__init__(message)
        self.message = message
        self.phase = phase
        self.spec = spec
        self.trial = NO_TRIAL


class RunController:
    """Reconciles TuningRuns."""

    def __init__(self, tools: Dependencies) -> None:
        self._tools = tools
        self._fresh = FreshStatus()

    async def reconcile(self, key: Key) -> Requeue:
        """One pass. The key's object may be gone."""
        body = self._fresh.newest(key, self._tools.view.run(key.namespace, key.name))
        if body is None:
            return Requeue(gone=True)
        if body["metadata"].get("deletionTimestamp"):
            return Requeue()
        try:
            run = TuningRun.read(body)
        except InvalidResource as error:
            return await self._unreadable(key, body, error)
        if run.status.phase.terminal:
            await self._tidy(run, failed=run.status.phase is RunPhase.FAILED)
            return Requeue()
        seen, again = await self._pass(run, body)
        await self._save(key, body, run, seen)
        if seen.phase.terminal:
            await self._tidy(run, failed=seen.phase is RunPhase.FAILED)
        return again

    async def _pass(self, run: TuningRun, body: Mapping[str, Any]) -> tuple[RunObservation, Requeue]:
        records = self._records(run)
        try:
            return await _Pass(self._tools, run, body, records).go()
        except _Waits as wait:
            seen = RunObservation(
                phase=wait.phase, message=wait.message, spec=wait.spec, trial=wait.trial, records=records
            )
            return seen, Requeue(after=WAIT_SECONDS)
        except _Ended as end:
            seen = RunObservation(
                phase=RunPhase.FAILED,
                message=end.message,
                spec=end.spec,
                trial=TRIAL_OVER,
                records=records,
                job_failed=end.job_failed,
            )
            return seen, Requeue()

    def _records(self, run: TuningRun) -> StudyRecords:
        namespace, name = run.metadata.namespace or "", names.records_config_map(run.metadata.name)
        records = read_records(self._tools.view.child("ConfigMap", namespace, name))
        if records.unreadable:
            LOG.warning("ConfigMap %s/%s: not readable: %s", namespace, name, "; ".join(map(str, records.unreadable)))
        return records

    async def _tidy(self, run: TuningRun, *, failed: bool) -> None:
        """Free the trial's GPU; a failed run's Job is stopped too, since it may still drive load."""
        await _remove(self._tools, DEPLOYMENTS, run, names.trial_name(run.metadata.name))
        if failed:
            await _remove(self._tools, JOBS, run, names.tuner_name(run.metadata.name))

    async def _save(self, key: Key, body: Mapping[str, Any], run: TuningRun, seen: RunObservation) -> None:
        status = run_status(run, seen, now=self._tools.now())
        if status == run.status:
            return
        answer = await self._tools.kube.replace_status(TUNING_RUNS, {**body, "status": status.to_kube()})
        self._fresh.wrote(key, body, answer)
        if status.phase is not run.status.phase:
            LOG.info("%s: %s: %s", key, status.phase.value, status.message)
        await self._tools.events.conditions(body, changed(run.status.conditions, status.conditions))

    async def _unreadable(self, key: Key, body: Mapping[str, Any], error: InvalidResource) -> Requeue:
        """A spec that the schema let through and the models do not, or one of a newer release."""
        finding = no(Reason.INVALID_SPEC, "; ".join(str(problem) for problem in error.problems))
        status = body.get("status") or {}
        if status.get("phase") == RunPhase.FAILED.value and status.get("message") == finding.message:
            return Requeue()
        condition = finding.condition(
            ConditionType.SPEC_VALID, generation=body["metadata"].get("generation") or 0, now=self._tools.now()
        )
        failed = {"phase": RunPhase.FAILED.value, "message": finding.message, "conditions": [condition.to_kube()]}
        answer = await self._tools.kube.replace_status(TUNING_RUNS, {**body, "status": failed})
        self._fresh.wrote(key, body, answer)
        return Requeue()


async def _remove(tools: Dependencies, resource: Any, run: TuningRun, name: str) -> None:
    there = tools.view.child(resource.kind, run.metadata.namespace or "", name)
    owners = there["metadata"].get("ownerReferences") or () if there else ()
    ours = any(owner["uid"] == run.metadata.uid for owner in owners)
    if there and ours and not there["metadata"].get("deletionTimestamp"):
        LOG.info("delete %s %s/%s: the study is over", resource.kind, run.metadata.namespace, name)
        await tools.kube.delete(resource, name, run.metadata.namespace)


class _Pass:
    """One pass over a run that is not over. Methods are stages, in the order of a run's life."""

    def __init__(self, tools: Dependencies, run: TuningRun, body: Mapping[str, Any], records: StudyRecords) -> None:
        self._tools = tools
        self._run = run
        self._body = body
        self._records = records
        self._namespace = run.metadata.namespace or ""
        self._name = run.metadata.name

    async def go(self) -> tuple[RunObservation, Requeue]:
        """Find the stage, carry it out."""
        service = self._service()
        config = self._config(service)
        study = self._records.study
        if study is not None and study.phase is RunPhase.FAILED:
            raise _Ended(study.message or "the study failed", job_failed=True)
        if study is not None and study.verdict is not None:
            return await self._after_study(service, config)
        return await self._study(service, config)

    def _service(self) -> InferenceService:
        name = self._run.spec.service_ref.name
        body = self._tools.view.service(self._namespace, name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            missing = no(Reason.SERVICE_NOT_FOUND, f"spec.serviceRef: InferenceService {name} does not exist here")
            if self._run.status.phase is RunPhase.PENDING:
                raise _Waits(f"waits for InferenceService {name}", spec=missing)
            raise _Ended(f"InferenceService {name} was deleted", spec=missing)
        try:
            return InferenceService.read(body)
        except InvalidResource as error:
            raise _Waits(f"waits for InferenceService {name}, whose spec is not valid: {error}") from None

    def _tuned(self, service: InferenceService) -> ActiveRevision | None:
        name = names.tuned_config_map(service.metadata.name)
        try:
            return read_active_revision(self._tools.view.child("ConfigMap", self._namespace, name))
        except ValueError:
            return None

    def _config(self, service: InferenceService) -> EffectiveConfig:
        try:
            return effective_config(service, self._tuned(service))
        except ConfigError as error:
            raise _Waits(f"waits for a valid config of InferenceService {service.metadata.name}: {error}") from None

    # -- the study

    async def _study(self, service: InferenceService, config: EffectiveConfig) -> tuple[RunObservation, Requeue]:
        try:
            check(self._run, service)
            template = service_objects(
                service, config, images=self._tools.settings.images, token=self._service_token(service)
            )
        except SpecRefusedError as error:
            raise _Ended(error.message, spec=no(error.reason, error.message)) from None
        if self._run.status.phase is RunPhase.PENDING:
            self._wait_for_turn(service)
        self._check_trial_template(template.template_revision)
        await self._make(trial_objects(
            self._run,
            service,
            config,
            images=self._tools.settings.images,
            token=self._trial_token(),
            revision=template.template_revision,
        ))  # fmt: skip
        trial = await self._trial(service)
        job = self._tools.view.child("Job", self._namespace, names.tuner_name(self._name))
        if job is None and not trial.holds:
            return self._seen(RunPhase.PREPARING, f"waits for the trial: {trial.message}", trial), Requeue(
                after=WAIT_SECONDS
            )
        if job is None:
            await self._make(job_objects(self._run, self._urls(service), images=self._tools.settings.images))
            return self._seen(RunPhase.PREPARING, "the tuner starts", trial), Requeue(after=WAIT_SECONDS)
        return self._watch(job, trial), Requeue(after=WAIT_SECONDS)

    def _wait_for_turn(self, service: InferenceService) -> None:
        name = service.metadata.name
        if not self._tools.settings.prometheus_url:
            raise _Waits("waits for a Prometheus: set prometheus.url in the chart's values")
        ahead = first_in_line(self._body, self._tools.view.runs_of(self._namespace, name))
        if ahead:
            raise _Waits(f"waits for TuningRun {ahead}, which tunes InferenceService {name} first")
        if not is_true(service.status.conditions, ConditionType.READY):
            ready = find_condition(service.status.conditions, ConditionType.READY)
            why = ready.message if ready else "it has no status yet"
            raise _Waits(f"waits for InferenceService {name} to be Ready: {why}")

    def _check_trial_template(self, revision: str) -> None:
        there = self._tools.view.child("Deployment", self._namespace, names.trial_name(self._name))
        if there is None:
            return
        began = deployment_view(there).revision
        if began != revision:
            raise _Ended(
                f"the service's pod template changed under the study ({began} -> {revision}): its trials say nothing "
                "about the new one; create a new TuningRun"
            )

    async def _make(self, objects: tuple[dict[str, Any], ...]) -> None:
        """Create what is missing. What is there stays: trials are compared with the baseline that they began with."""
        missing = [body for body in objects if self._missing(body)]
        written = await self._tools.writer.bring(missing)
        if written.conflict:
            raise _Ended(written.conflict)
        if written.error:
            raise _Waits(f"a write failed and is tried again: {written.error}", phase=RunPhase.PREPARING)

    def _missing(self, body: Mapping[str, Any]) -> bool:
        there = self._tools.view.child(body["kind"], self._namespace, body["metadata"]["name"])
        owners = there["metadata"].get("ownerReferences") or () if there else ()
        return not any(owner["uid"] == self._run.metadata.uid for owner in owners)

    async def _trial(self, service: InferenceService) -> Finding:
        there = self._tools.view.child("Deployment", self._namespace, names.trial_name(self._name))
        pods = by_age(pod for pod in self._pods(names.ENGINE_CONTAINER) if pod.track == names.TRACK_TRIAL)
        fleet = Fleet(
            pods=pods,
            replicas=1,
            revision=deployment_view(there).revision if there else "",
            model=model_argument(service.spec.model),
            probed={},
            deployment=deployment_view(there) if there else None,
        )
        probed = {pod.uid: await self._probe(pod) for pod in fleet.ready}
        return engines_ready(replace(fleet, probed=probed))

    def _pods(self, container: str) -> list[PodView]:
        return [pod_view(body, container) for body in self._tools.view.run_pods(self._namespace, self._name)]

    async def _probe(self, pod: PodView) -> EngineProbe:
        try:
            state = await self._tools.engines.read(pod.ip, token=self._trial_token())
        except EngineCallError as error:
            return EngineProbe(unreachable=str(error))
        return EngineProbe(state=state, in_force=True)

    def _urls(self, service: InferenceService) -> JobUrls:
        view = self._tools.view
        trial = cluster_ip(view.child("Service", self._namespace, names.trial_name(self._name)))
        stable = cluster_ip(view.child("Service", self._namespace, names.service_name(service.metadata.name)))
        if not (trial and stable):
            raise _Waits("waits for the addresses of the Services", phase=RunPhase.PREPARING)
        return JobUrls(
            trial=service_url(trial),
            trial_admin=admin_url(trial),
            service=service_url(stable),
            prometheus=self._tools.settings.prometheus_url,
        )

    def _watch(self, job: Mapping[str, Any], trial: Finding) -> RunObservation:
        seen, study = job_view(job), self._records.study
        if seen.failed or (seen.succeeded and self._old(seen.ended_at)):
            why = self._last_words() or seen.failed or "it ended without a verdict"
            raise _Ended(f"the tuning Job failed: {why}", job_failed=True)
        if study is None:
            return self._seen(RunPhase.PREPARING, self._last_words() or "the tuner starts", trial)
        return self._seen(study.phase, study.message, trial)

    def _old(self, ended_at: str) -> bool:
        return not ended_at or (self._tools.now() - timestamp(ended_at)).total_seconds() > RECORDS_SECONDS

    def _last_words(self) -> str:
        """What the Job's newest pod that failed said."""
        pods = by_age(pod for pod in self._pods(names.TUNER_CONTAINER) if not pod.track)
        said = [pod for pod in pods if pod.exited is not None and pod.exited.code != 0]
        if said and said[-1].exited is not None:
            ended = said[-1].exited
            return f"pod {said[-1].name} exited with code {ended.code}: {ended.message or ended.reason}"
        stuck = [pod for pod in pods if pod.unschedulable or pod.waiting_message]
        return f"pod {stuck[-1].name}: {stuck[-1].unschedulable or stuck[-1].waiting_message}" if stuck else ""

    # -- the proposal

    async def _after_study(self, service: InferenceService, config: EffectiveConfig) -> tuple[RunObservation, Requeue]:
        await _remove(self._tools, DEPLOYMENTS, self._run, names.trial_name(self._name))
        study = self._records.study
        improved = study is not None and study.verdict is StudyVerdict.IMPROVED and study.proposal is not None
        message = study.message if study else ""
        if not improved or (self._run.spec.apply is not ApplyPolicy.AUTO and self._run.status.rollout is None):
            return self._seen(RunPhase.COMPLETED, message, TRIAL_OVER), Requeue()
        status, wake = await self._roll(service, config)
        phase = rollout_phase(status)
        after = None if phase.terminal else machine.POLL_SECONDS
        return self._seen(phase, status.message, TRIAL_OVER, status), Requeue(after=after, wake=wake)

    async def _roll(self, service: InferenceService, config: EffectiveConfig) -> tuple[RolloutStatus, tuple[Key, ...]]:
        scene = await self._scene(service, config, None)
        status = self._run.status.rollout
        if status is None:
            return self._begin(config, scene), ()
        if status.phase is RolloutPhase.APPLYING:
            queue = await self._tools.metrics.waiting(self._namespace, [pod.name for pod in status.pods])
            scene = replace(scene, waiting=queue)
        query = machine.window(status, scene)
        if query is not None:
            reading = await self._tools.metrics.read(query, now=self._tools.now())
            scene = await self._scene(service, config, reading)
        taken = machine.step(status, scene)
        if taken.write:
            written = await self._tools.writer.bring([tuned_config_map(service, taken.tuned)])
            if written.error or written.conflict:
                LOG.warning("the proposal's record was not written, the step is taken again: %s", written)
                return status, ()
        wake = (Key(names.INFERENCE_SERVICE_KIND, self._namespace, service.metadata.name),) if taken.write else ()
        return taken.status, wake

    def _begin(self, config: EffectiveConfig, scene: machine.RolloutScene) -> RolloutStatus:
        status = machine.begin(scene)
        there = self._tools.view.child("ConfigMap", self._namespace, names.trial_name(self._name))
        baseline = json.loads(there["data"][names.CONFIG_KEY])["config"] if there else dict(config.values)
        if baseline == dict(config.values):
            return status
        message = "the service's config changed since the study began: the proposal was not measured against it"
        return status.model_copy(update={"phase": RolloutPhase.FAILED, "message": f"{message}; create a new TuningRun"})

    async def _scene(self, service: InferenceService, config: EffectiveConfig, reading: Any) -> machine.RolloutScene:
        study = self._records.study
        knobs = study.proposal.knobs.values() if study and study.proposal else {}
        pinned = service.spec.engine.config.values()
        slo: SloSpec | None = service.spec.slo
        return machine.RolloutScene(
            now=self._tools.now(),
            namespace=self._namespace,
            proposal=machine.ProposedChange(
                run=self._name,
                run_uid=self._run.metadata.uid or "",
                knobs=knobs,
                override_pinned=self._run.spec.override_pinned,
                pinned={name: pinned[name] for name in knobs if name in pinned},
            ),
            spec=self._run.spec,
            min_requests=slo.min_requests if slo else 1,
            pods=await self._engines(service, config),
            present=frozenset(pod.uid for pod in self._stable(service)),
            tuned=self._tuned(service),
            reading=reading,
            service_problem=_engine_problem(service),
        )

    async def _engines(self, service: InferenceService, config: EffectiveConfig) -> dict[str, machine.PodFacts]:
        ready = [pod for pod in self._stable(service) if pod.ready and pod.ip]
        facts = await asyncio.gather(*(self._facts(pod, service, config) for pod in ready))
        return {fact.uid: fact for fact in facts if fact is not None}

    def _stable(self, service: InferenceService) -> list[PodView]:
        raw = self._tools.view.engine_pods(self._namespace, service.metadata.name)
        pods = [pod for pod in map(pod_view, raw) if pod.track == names.TRACK_STABLE]
        return [pod for pod in pods if not pod.terminating and not pod.finished]

    async def _facts(self, pod: PodView, service: InferenceService, config: EffectiveConfig) -> machine.PodFacts | None:
        try:
            state = await self._tools.engines.read(pod.ip, token=self._service_token(service))
            wanted = config.hot(state.device)
        except (EngineCallError, ConfigError):
            return None
        return machine.PodFacts(
            name=pod.name,
            uid=pod.uid,
            started_at=datetime.fromtimestamp(round(state.started_at, 3), UTC),
            generation=state.generation,
            config=state.config,
            wanted=wanted,
        )

    def _seen(
        self, phase: RunPhase, message: str, trial: Finding, rollout: RolloutStatus | None = None
    ) -> RunObservation:
        return RunObservation(
            phase=phase, message=message, spec=VALID, trial=trial, records=self._records, rollout=rollout
        )

    def _service_token(self, service: InferenceService) -> str:
        root = self._tools.settings.root_token
        return service_token(root, namespace=self._namespace, service=service.metadata.name)

    def _trial_token(self) -> str:
        return trial_token(self._tools.settings.root_token, namespace=self._namespace, run=self._name)


def _engine_problem(service: InferenceService) -> str:
    found = find_condition(service.status.conditions, ConditionType.ENGINE_READY)
    return "" if found is None or found.status is ConditionStatus.TRUE else found.message
