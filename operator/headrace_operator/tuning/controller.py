"""TuningRuns: read the run and its records, carry out one pass, write the status once, tidy up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace_api import names
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.conditions import ConditionType, Reason
from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import RunPhase
from headrace_api.v1alpha1.tuningrun import TuningRun
from headrace_client.resources import DEPLOYMENTS, JOBS, TUNING_RUNS
from headrace_operator.cluster.findings import no
from headrace_operator.cluster.fresh_status import FreshStatus
from headrace_operator.dependencies import Dependencies
from headrace_operator.protocols import Key
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.service.status import changed
from headrace_operator.tuning.run_pass import TRIAL_OVER, WAIT_SECONDS, RunEnded, RunPass, RunWaits, remove_owned
from headrace_operator.tuning.status import (
    RunObservation,
    read_records,
    run_status,
)

LOG = logging.getLogger(__name__)


class RunController:
    """Reconciles TuningRuns."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._fresh = FreshStatus()

    async def reconcile(self, key: Key) -> Requeue:
        """One pass. The key's object may be gone."""
        body = self._fresh.newest(key, self._dependencies.cache.run(key.namespace, key.name))
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
            return await RunPass(self._dependencies, run, body, records).go()
        except RunWaits as wait:
            seen = RunObservation(
                phase=wait.phase, message=wait.message, spec=wait.spec, trial=wait.trial, records=records
            )
            return seen, Requeue(after=WAIT_SECONDS)
        except RunEnded as end:
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
        records = read_records(self._dependencies.cache.child("ConfigMap", namespace, name))
        if records.unreadable:
            LOG.warning("ConfigMap %s/%s: not readable: %s", namespace, name, "; ".join(map(str, records.unreadable)))
        return records

    async def _tidy(self, run: TuningRun, *, failed: bool) -> None:
        """Free the trial's GPU; a failed run's Job is stopped too, since it may still drive load."""
        await remove_owned(self._dependencies, DEPLOYMENTS, run, names.trial_name(run.metadata.name))
        if failed:
            await remove_owned(self._dependencies, JOBS, run, names.tuner_name(run.metadata.name))

    async def _save(self, key: Key, body: Mapping[str, Any], run: TuningRun, seen: RunObservation) -> None:
        status = run_status(run, seen, now=self._dependencies.now())
        if status == run.status:
            return
        answer = await self._dependencies.kube.replace_status(TUNING_RUNS, {**body, "status": status.to_kube()})
        self._fresh.wrote(key, body, answer)
        if status.phase is not run.status.phase:
            LOG.info("%s: %s: %s", key, status.phase.value, status.message)
        await self._dependencies.events.conditions(body, changed(run.status.conditions, status.conditions))

    async def _unreadable(self, key: Key, body: Mapping[str, Any], error: InvalidResource) -> Requeue:
        """Fail a run whose spec the schema accepted and the models reject, such as one of a newer release."""
        finding = no(Reason.INVALID_SPEC, "; ".join(str(problem) for problem in error.problems))
        status = body.get("status") or {}
        if status.get("phase") == RunPhase.FAILED.value and status.get("message") == finding.message:
            return Requeue()
        condition = finding.condition(
            ConditionType.SPEC_VALID, generation=body["metadata"].get("generation") or 0, now=self._dependencies.now()
        )
        failed = {"phase": RunPhase.FAILED.value, "message": finding.message, "conditions": [condition.to_kube()]}
        answer = await self._dependencies.kube.replace_status(TUNING_RUNS, {**body, "status": failed})
        self._fresh.wrote(key, body, answer)
        return Requeue()
