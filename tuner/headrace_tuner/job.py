"""The Job of a TuningRun: reads the run, does the study on the trial pod, writes records, and keeps the load up."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_api.base import CustomResource as Custom
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.records import StudyRecord, TrialRecord, VerificationRecord
from headrace_api.v1alpha1.slo import SloSpec
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_client.load.client import LoadClient, find_endpoint, load_session
from headrace_client.resources import INFERENCE_SERVICES, TUNING_RUNS, ApiResource
from headrace_core.errors import HeadraceError
from headrace_core.workload.plans import derive_seed
from headrace_tuner.connections import Addresses, connect
from headrace_tuner.errors import TunerError
from headrace_tuner.measure.background_load import background_load
from headrace_tuner.records.configmap import ConfigMapStore
from headrace_tuner.settings import study_plan, workload_of
from headrace_tuner.study.phases import KeepLoad, next_action
from headrace_tuner.study.runner import Setup, StudyRunner, write_failure
from headrace_tuner.study.space import Space

log = logging.getLogger(__name__)
ModelT = TypeVar("ModelT", bound=Custom)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """One run of the Job, `namespace`/`run`, and where everything is."""

    namespace: str
    run: str
    service_url: str
    addresses: Addresses

    async def execute(self, kube: Kube) -> StudyRecord:
        """Run the study, continuing where its records end. Raises `HeadraceError`."""
        run: TuningRun = _read(TuningRun, await self._get(kube, TUNING_RUNS, self.run))
        store = ConfigMapStore(kube, namespace=self.namespace, run=self.run, owner=run.owner_reference())
        await store.acquire()
        try:
            return await self._study(kube, run, store)
        except HeadraceError as error:
            await write_failure(store, error)
            raise
        finally:
            await store.release()

    async def _study(self, kube: Kube, run: TuningRun, store: ConfigMapStore) -> StudyRecord:
        slo = await self._slo(kube, run)
        plan = study_plan(run.spec, slo, keep_load=True)

        async def hold() -> None:
            await self._hold(kube, run)

        records = await store.load()
        if records.study is not None and records.study.verdict is not None:  # the trial pod may be gone by now
            if isinstance(next_action(plan, records, now=0.0), KeepLoad):
                await hold()
            return records.study
        async with connect(self.addresses) as connections:
            setup = Setup(
                name=self.run,
                plan=plan,
                space=Space.of(run.spec.knobs),
                sampler=run.spec.sampler,
                seed=run.spec.workload.seed,
                store=store,
                engine=connections,
                meter=connections.meter(run.spec, slo),
                keep_load=hold,
                on_end=_log_end,
                on_study=_log_study,
            )
            return await StudyRunner(setup).run()

    async def _hold(self, kube: Kube, run: TuningRun) -> None:
        spec = run.spec.workload
        async with load_session() as session:
            endpoint = await find_endpoint(session, self.service_url)
            client = LoadClient(endpoint=endpoint, session=session, salt=f"{run.metadata.uid}-{secrets.token_hex(3)}")
            seed = derive_seed(spec.seed, "rollout")
            await background_load(client, workload_of(spec), seed=seed, done=self._rollout_ended(kube))

    def _rollout_ended(self, kube: Kube) -> Callable[[], Awaitable[bool]]:
        async def ended() -> bool:
            try:
                body = await kube.get(TUNING_RUNS, self.run, self.namespace)
                if body is None:
                    return True
                rollout = TuningRun.read(body).status.rollout
            except (KubeError, InvalidResource) as error:
                log.warning("the run cannot be read; the load continues", extra={"reason": str(error)})
                return False
            return rollout is not None and rollout.phase.terminal

        return ended

    async def _slo(self, kube: Kube, run: TuningRun) -> SloSpec:
        if run.spec.slo is not None:
            return run.spec.slo
        service: InferenceService = _read(
            InferenceService, await self._get(kube, INFERENCE_SERVICES, run.spec.service_ref.name)
        )
        if service.spec.slo is None:
            raise TunerError(
                f"neither TuningRun {run.key} nor InferenceService {service.key} has an SLO: set spec.slo on one"
            )
        return service.spec.slo

    async def _get(self, kube: Kube, resource: ApiResource, name: str) -> dict[str, Any]:
        where = f"{resource.kind} {self.namespace}/{name}"
        try:
            body = await kube.get(resource, name, self.namespace)
        except KubeError as error:
            raise TunerError(f"{where} cannot be read: {error}") from error
        if body is None:
            raise TunerError(f"{where} does not exist, or has been deleted")
        return body


def _read(model: type[ModelT], body: dict[str, Any]) -> ModelT:
    try:
        return model.read(body)
    except InvalidResource as error:
        raise TunerError(str(error)) from error


def _log_end(record: TrialRecord | VerificationRecord) -> None:
    kind = "trial" if isinstance(record, TrialRecord) else "verification window"
    log.info("%s %d ended", kind, record.number, extra={"record": record.to_kube(only_set=True)})


def _log_study(study: StudyRecord) -> None:
    verdict = study.verdict.value if study.verdict else None
    log.info(study.message, extra={"phase": study.phase.value, "verdict": verdict})
