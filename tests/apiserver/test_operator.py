"""One InferenceService on the real API server, reconciled by the operator as a real process under its own rights.

Garbage is not collected here: owners are asserted instead.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from kube_patches import merge_patch

from headrace_client import resources as res
from headrace_client.kube import Kube

sys.path.insert(0, str(Path(__file__).parent))  # test folders are not packages

from operator_harness import (
    ACCOUNT,
    Engine,
    Operator,
    account_kubeconfig,
    command_line,
    condition,
    current,
    grant,
    operator,
    play_controllers,
    service,
    until,
)


@pytest.fixture
async def restricted(kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path) -> Path:
    await grant(kube, namespace)
    return await account_kubeconfig(kube, namespace, kubeconfig, tmp_path)


async def test_a_service_from_its_first_sight_to_a_hot_change(
    kube: Kube, namespace: str, restricted: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
    await kube.apply(account, field_manager="tests")
    async with operator(restricted, namespace, tmp_path) as running:
        await kube.create(service(namespace, resources={"cpu": "1500m", "memory": "1Gi"}))
        await until(
            kube,
            res.INFERENCE_SERVICES,
            namespace,
            holds=lambda body: bool(body.get("status", {}).get("endpoint")),
        )
        await assert_children(kube, namespace)
        engine, pod_address = Engine(), "127.97.200.10"
        config_map = await kube.get(res.CONFIG_MAPS, "chat-engine", namespace)
        front = await kube.get(res.SERVICES, "chat", namespace)
        assert config_map
        assert front
        engine.boot(json.loads(config_map["data"]["engine.json"]))
        async with engine.serve(pod_address, front["spec"]["clusterIP"]):
            await play_controllers(kube, namespace, pod_address)
            ready = await until(
                kube, res.INFERENCE_SERVICES, namespace, holds=lambda body: current(body, "Ready")["status"] == "True"
            )
            assert "pretend GPU" in condition(ready, "Ready")["message"]
            assert engine.tokens == 1
            await hot_change(kube, namespace, engine)
            await assert_told(kubeconfig, namespace)
            await bad_spec(kube, namespace)
        await assert_quiet(kube, namespace, running)


async def assert_children(kube: Kube, namespace: str) -> None:
    owner = await kube.get(res.INFERENCE_SERVICES, "chat", namespace)
    assert owner
    assert "finalizers" not in owner["metadata"]
    assert "annotations" not in owner["metadata"]
    for resource, name in (
        (res.SECRETS, "chat-admin"),
        (res.CONFIG_MAPS, "chat-engine"),
        (res.SERVICES, "chat"),
        (res.DEPLOYMENTS, "chat"),
    ):
        child = await kube.get(resource, name, namespace)
        assert child, name
        assert [item["uid"] for item in child["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
        managers = {item["manager"] for item in child["metadata"]["managedFields"] if item["operation"] == "Apply"}
        assert managers == {"headrace-operator"}


async def hot_change(kube: Kube, namespace: str, engine: Engine) -> None:
    before = await kube.get(res.DEPLOYMENTS, "chat", namespace)
    patch = {"spec": {"engine": {"config": {"prefillChunkSize": 64}}, "slo": {"ttft": {"threshold": "1700ms"}}}}
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch=patch)
    done = await until(
        kube,
        res.INFERENCE_SERVICES,
        namespace,
        holds=lambda body: current(body, "Ready")["status"] == "True" and body["status"]["revision"] == engine.revision,
    )
    after = await kube.get(res.DEPLOYMENTS, "chat", namespace)
    assert engine.patches == [{"prefill_chunk_size": 64}]
    assert engine.slo["ttft_seconds"] == 1.7
    assert done["status"]["config"]["prefillChunkSize"] == 64
    assert before
    assert after
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


async def assert_told(kubeconfig: Path, namespace: str) -> None:
    shown = json.loads(await command_line(kubeconfig, "status", "-n", namespace, "-o", "json"))
    assert [body["metadata"]["name"] for body in shown["services"]] == ["chat"]
    assert "Serving" in await command_line(kubeconfig, "status", "-n", namespace)
    lines = json.loads(await command_line(kubeconfig, "explain", "chat", "-n", namespace, "--output", "json"))
    chunk = next(line for line in lines if line["knob"] == "prefillChunkSize")
    assert (chunk["value"], chunk["source"], chunk["class"]) == (64, "Spec", "hot")
    assert chunk["since"]


async def bad_spec(kube: Kube, namespace: str) -> None:
    patch = {"spec": {"model": {"uri": "s3://bucket/model"}}}
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch=patch)
    refused = await until(
        kube, res.INFERENCE_SERVICES, namespace, holds=lambda body: current(body, "SpecValid")["status"] == "False"
    )
    assert condition(refused, "SpecValid")["reason"] == "UnsupportedModel"
    assert condition(refused, "Ready")["reason"] == "SpecNotValid"
    good = {"spec": {"model": {"uri": "file:///models/tiny"}}}
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch=good)
    await until(kube, res.INFERENCE_SERVICES, namespace, holds=lambda body: current(body, "Ready")["status"] == "True")


async def assert_quiet(kube: Kube, namespace: str, running: Operator) -> None:
    """Alive, no denied call, events posted, and nothing is written while nothing changes."""
    versions = await child_versions(kube, namespace)
    async with aiohttp.ClientSession() as session:
        async with session.get(running.health) as answer:
            assert answer.status == 200, await answer.text()
        async with session.get(running.metrics) as answer:
            text = await answer.text()
    assert 'headrace_operator_services{ready="True"} 1.0' in text
    assert 'result="bug"' not in text
    events = await kube.list(res.EVENTS, namespace)
    assert {"Serving", "UnsupportedModel"} <= {event["reason"] for event in events}
    patch = {"metadata": {"labels": {"poke": "1"}}}
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch=patch)
    await asyncio.sleep(1.0)  # the operator sees the poke, and must find nothing to do
    assert await child_versions(kube, namespace) == versions
    lines = running.lines()
    assert [line for line in lines if "orbidden" in line["message"]] == []
    assert [line for line in lines if line["severity"] == "error"] == []
    changed = next(line for line in lines if "prefill_chunk_size=64" in line["message"])
    assert changed["k8s"] == {"kind": "InferenceService", "namespace": namespace, "name": "chat"}


async def child_versions(kube: Kube, namespace: str) -> dict[str, str]:
    kinds = (res.SECRETS, res.CONFIG_MAPS, res.SERVICES, res.DEPLOYMENTS)
    found = [body for kind in kinds for body in await kube.list(kind, namespace)]
    return {f"{body['kind']}/{body['metadata']['name']}": body["metadata"]["resourceVersion"] for body in found}


async def test_cluster_wide_it_serves_every_namespace_and_a_killed_one_is_followed(
    kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    await grant(kube, namespace, cluster=True)
    everywhere = await account_kubeconfig(kube, namespace, kubeconfig, tmp_path)
    async with operator(everywhere, None, tmp_path, leaves_with=-signal.SIGKILL) as first:
        await kube.create(service(namespace))
        await until(kube, res.CONFIG_MAPS, namespace, name="chat-engine", holds=lambda body: True)
        first.process.kill()
    async with operator(everywhere, None, tmp_path):
        await until(kube, res.DEPLOYMENTS, namespace, holds=lambda body: True)
        await until(
            kube,
            res.INFERENCE_SERVICES,
            namespace,
            holds=lambda body: current(body, "Progressing")["reason"] == "RollingOut",
        )


async def test_the_operator_can_do_nothing_beyond_its_rules(kube: Kube, namespace: str) -> None:
    await grant(kube, namespace)
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    for verb, group, resource in (
        ("get", "", "secrets"),
        ("list", "", "secrets"),
        ("delete", "", "pods"),
        ("update", "headrace.dev", "inferenceservices"),
        ("delete", "headrace.dev", "tuningruns"),
        ("escalate", "rbac.authorization.k8s.io", "roles"),
    ):
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        answer = json.loads(await kube.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review))
        assert not answer["status"]["allowed"], (verb, resource)
