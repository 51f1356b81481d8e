"""One TuningRun on the real API server: the trial, the Job under its own narrow rights, the records, the proposal."""

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kube_patches import apply_status

from headrace_client import resources as res
from headrace_client.errors import Forbidden
from headrace_client.kube import Kube

sys.path.insert(0, str(Path(__file__).parent))  # test folders are not packages

from operator_harness import (
    Engine,
    account_kubeconfig,
    condition,
    current,
    grant,
    operator,
    play_controllers,
    service,
    tuning_run,
    until,
)

STABLE, TRIAL = "127.97.201.10", "127.97.201.11"
SLO = {"ttft": {"threshold": "800ms"}}


async def engine_of(kube: Kube, namespace: str, name: str, address: str, stack: AsyncExitStack) -> Engine:
    """Boot an engine from the ConfigMap of one track and make its pod ready."""
    config_map = await kube.get(res.CONFIG_MAPS, f"{name}-engine" if name == "chat" else name, namespace)
    front = await kube.get(res.SERVICES, name, namespace)
    assert config_map
    assert front
    engine = Engine()
    engine.boot(json.loads(config_map["data"]["engine.json"]))
    await stack.enter_async_context(engine.serve(address, front["spec"]["clusterIP"]))
    await play_controllers(kube, namespace, address, name=name)
    return engine


async def test_a_run_from_the_trial_to_the_proposal(
    kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    await grant(kube, namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
    await kube.apply(account, field_manager="tests")
    restricted = await account_kubeconfig(kube, namespace, kubeconfig, tmp_path)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(operator(restricted, namespace, tmp_path))
        await kube.create(service(namespace, slo=SLO))
        await kube.create(tuning_run(namespace))
        await until(
            kube,
            res.INFERENCE_SERVICES,
            namespace,
            holds=lambda body: bool(body.get("status", {}).get("endpoint")),
        )
        await engine_of(kube, namespace, "chat", STABLE, stack)
        await until(
            kube, res.INFERENCE_SERVICES, namespace, holds=lambda body: current(body, "Ready")["status"] == "True"
        )
        await until(kube, res.DEPLOYMENTS, namespace, name="tune-trial", holds=lambda body: True)
        await until(kube, res.SERVICES, namespace, name="tune-trial", holds=lambda body: True)
        await engine_of(kube, namespace, "tune-trial", TRIAL, stack)
        job = await until(kube, res.JOBS, namespace, name="tune-tuner", holds=lambda body: True)
        assert f"{namespace}/tune" in job["spec"]["template"]["spec"]["containers"][0]["command"]
        await play_job(kube, namespace)
        await proposal_ends_the_run(kube, namespace)
        lines = running.lines()
        assert [line for line in lines if "orbidden" in line["message"]] == []
        assert [line for line in lines if line["severity"] == "error"] == []


async def play_job(kube: Kube, namespace: str) -> None:
    """As the Job's ServiceAccount: it can write its records and read its run, and nothing else."""
    user = {"Impersonate-User": f"system:serviceaccount:{namespace}:tune-tuner"}
    async with Kube(kube.connection, headers=user) as job:
        run = await job.get(res.TUNING_RUNS, "tune", namespace)
        assert run
        assert await job.get(res.INFERENCE_SERVICES, "chat", namespace)
        trial = {"number": 0, "state": "Complete", "knobs": {"prefillChunkSize": 32}, "score": 1.5}
        await records(job, namespace, run, {"phase": "Searching", "message": "trial 1", "total": 20}, trial)
        seen = await until(
            kube,
            res.TUNING_RUNS,
            namespace,
            name="tune",
            holds=lambda body: body.get("status", {}).get("phase") == "Searching",
        )
        assert seen["status"]["trials"]["progress"] == "1/20"
        with pytest.raises(Forbidden):
            await job.get(res.CONFIG_MAPS, "chat-engine", namespace)
        with pytest.raises(Forbidden):
            await apply_status(job, {**run, "metadata": {"name": "tune", "namespace": namespace}}, field_manager="x")
        # Records that somebody deleted can be made again, by that name only.
        await kube.delete(res.CONFIG_MAPS, "tune-records", namespace)
        study = {"phase": "Proposed", "message": "better", "total": 20, "verdict": "Improved"}
        proposal = {"proposal": {"knobs": {"prefillChunkSize": 32}}}
        await records(job, namespace, run, {**study, **proposal}, trial)
        with pytest.raises(Forbidden):
            await job.apply(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": namespace}},
                field_manager="headrace-tuner",
            )


async def records(job: Kube, namespace: str, run: dict[str, Any], study: dict[str, Any], trial: dict[str, Any]) -> None:
    owner = {"apiVersion": run["apiVersion"], "kind": "TuningRun", "name": "tune", "uid": run["metadata"]["uid"]}
    labels = {"app.kubernetes.io/managed-by": "headrace", "headrace.dev/tuning-run": "tune"}
    await job.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "tune-records",
                "namespace": namespace,
                "labels": labels,
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
            },
            "data": {"study.json": json.dumps(study), "trial-0000.json": json.dumps(trial)},
        },
        field_manager="headrace-tuner",
    )


async def proposal_ends_the_run(kube: Kube, namespace: str) -> None:
    done = await until(
        kube,
        res.TUNING_RUNS,
        namespace,
        name="tune",
        holds=lambda body: body.get("status", {}).get("phase") == "Completed",
    )
    assert done["status"]["proposal"]["knobs"] == {"prefillChunkSize": 32}
    assert condition(done, "Applied")["reason"] == "AwaitingApproval"
    async for event in kube.watch(res.DEPLOYMENTS, namespace, field_selector="metadata.name=tune-trial"):
        if event.type.value == "DELETED" or (event.object or {}).get("metadata", {}).get("deletionTimestamp"):
            return
        if event.type.value == "SYNCED" and await kube.get(res.DEPLOYMENTS, "tune-trial", namespace) is None:
            return
