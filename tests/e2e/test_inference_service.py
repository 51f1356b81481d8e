"""The whole system: an InferenceService on the embedded cluster, served by a real pretrained model.

One cluster, one service; the tests run in the order of the file, each from the state that the one before it left.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace_api import names
from headrace_client.engine import EngineAdmin
from headrace_client.errors import Invalid
from headrace_client.kube import Kube
from headrace_client.resources import CONFIG_MAPS, INFERENCE_SERVICES, PODS, SECRETS
from headrace_local.demo import client
from headrace_local.demo.waiting import condition, wait_for
from headrace_local.layout import Slot

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="the node's mounts need root"),
]

NAMESPACE, SERVICE = "default", "chat"
Object = dict[str, Any]


def service(uri: str, **config: Any) -> Object:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE_KIND,
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": uri},
            "engine": {"config": {"maxNumBatchedTokens": 256, "maxNumSeqs": 8, **config}},
            "resources": {"gpu": {"count": 1}, "cpu": "100m", "memory": "1Gi"},
            "slo": {"ttft": {"percentile": 95, "threshold": "60s"}, "itl": {"percentile": 99, "threshold": "20s"}},
        },
    }


async def apply(kube: Kube, body: Object) -> None:
    await kube.apply(body, field_manager="test")


async def until(kube: Kube, judge: Any) -> Object:
    return await wait_for(kube, INFERENCE_SERVICES, SERVICE, NAMESPACE, judge, seconds=150)


def current(resource: Mapping[str, Any]) -> bool:
    return bool(resource["metadata"]["generation"] == resource.get("status", {}).get("observedGeneration"))


def ready(resource: Mapping[str, Any]) -> Object | None:
    return dict(resource) if current(resource) and condition(resource, "Ready").get("status") == "True" else None


async def running_pod(kube: Kube) -> Object:
    pods = await kube.list(PODS, NAMESPACE, names.selector_string(names.stable_selector(SERVICE)))
    (pod,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return pod


async def test_a_model_that_does_not_exist_is_named_in_the_condition(kube: Kube) -> None:
    await apply(kube, service("file:///no/such/model"))

    def refused(resource: Mapping[str, Any]) -> Mapping[str, Any] | None:
        said = condition(resource, "Ready")
        return said if said.get("reason") == "ModelNotFound" else None

    said = await until(kube, refused)
    assert said["status"] == "False"
    assert "/no/such/model" in said["message"]


async def test_correcting_the_path_heals_it_and_tokens_stream_through_the_service(kube: Kube, model: Path) -> None:
    await apply(kube, service(f"file://{model}"))
    resource = await until(kube, ready)
    assert "pretend GPU" in condition(resource, "Ready")["message"]
    url = resource["status"]["endpoint"]["url"]
    pieces = [piece async for piece in client.chat(url, SERVICE, "Count from one to five.", max_tokens=16)]
    assert len(pieces) > 1, "the answer came in one piece: it was not streamed"
    assert "".join(pieces).strip()


async def test_a_bad_request_is_the_clients_fault_and_the_next_one_works(kube: Kube) -> None:
    url = (await until(kube, ready))["status"]["endpoint"]["url"]
    async with aiohttp.ClientSession() as session:
        for body, status in (({"model": SERVICE, "prompt": "x" * 400_000}, 400), ({"model": "no", "prompt": "x"}, 404)):
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == status
                assert (await response.json())["error"]["message"]
        good = {"model": SERVICE, "prompt": "Once upon a time", "max_tokens": 4}
        async with session.post(f"{url}/v1/completions", json=good) as response:
            assert response.status == 200


async def test_contradictions_never_reach_the_operator(kube: Kube, model: Path) -> None:
    with pytest.raises(Invalid, match="prefillChunkSize"):
        await apply(kube, service(f"file://{model}", prefillChunkSize=512))
    with pytest.raises(Invalid, match="decodeRatio"):
        await apply(kube, service(f"file://{model}", decodeRatio=1.0))


async def test_a_hot_knob_changes_in_the_running_pod_without_a_restart(kube: Kube, model: Path) -> None:
    before = await running_pod(kube)
    secret = await kube.get(SECRETS, names.admin_secret(SERVICE), NAMESPACE)
    assert secret is not None
    await apply(kube, service(f"file://{model}", prefillChunkSize=32))

    def applied(resource: Mapping[str, Any]) -> Object | None:
        return dict(resource) if current(resource) and resource["status"]["config"]["prefillChunkSize"] == 32 else None

    await until(kube, applied)
    async with EngineAdmin(f"http://{before['status']['podIP']}:{names.ADMIN_PORT}", token(secret)) as admin:
        state = await admin.get_config()
    assert state.config["prefill_chunk_size"] == 32
    assert state.generation == 2
    after = await running_pod(kube)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    boot = await kube.get(CONFIG_MAPS, names.engine_config_map(SERVICE), NAMESPACE)
    assert boot is not None
    assert '"prefill_chunk_size": 32' in boot["data"][names.CONFIG_KEY], "a restarted pod would boot with the old chunk"


async def test_what_became_of_a_request_is_told_by_the_services_name(kube: Kube, installed: Slot) -> None:
    url = (await until(kube, ready))["status"]["endpoint"]["url"]
    body = {"model": SERVICE, "prompt": "Once upon a time", "max_tokens": 2}
    async with (
        aiohttp.ClientSession(headers={"X-Request-Id": "mine"}) as session,
        session.post(f"{url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200
    code, out, _ = await explain(installed.kubeconfig, "mine", "--service", SERVICE)
    assert code == 0
    assert "POST /v1/completions (x-request-id mine) was answered 200" in out
    code, _, err = await explain(installed.kubeconfig, "nobody", "--service", SERVICE)
    assert code == 1
    assert "no request 'nobody' is known" in err
    assert (await running_pod(kube))["metadata"]["name"] in err
    code, _, err = await explain(installed.kubeconfig, "mine", "--service", "other")
    assert code == 1
    assert "InferenceService default/other has no running pod" in err


async def explain(kubeconfig: Path, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace_cli", "explain", "request", *arguments, "-n", NAMESPACE,
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "COLUMNS": "300"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def token(secret: Object) -> str:
    import base64

    return base64.b64decode(secret["data"][names.ADMIN_TOKEN_KEY]).decode()
