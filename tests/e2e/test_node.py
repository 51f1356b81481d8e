"""The real kubelet over our runtime: probes, volumes, logs, retries, GPU counting, Services."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kube_patches import merge_patch

from headrace_client.kube import Kube
from headrace_client.resources import CONFIG_MAPS, DEPLOYMENTS, EVENTS, JOBS, PODS, SERVICES
from headrace_local import binaries, cluster
from headrace_local.control_plane import private_slot
from headrace_local.layout import Slot, cache_root
from headrace_local.processes import Processes, ProcessSpec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="the node's mounts need root"),
]

NAMESPACE = "default"
SERVER = """
import http.server, os, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
print("serving as", os.getuid(), "on", os.environ["POD_IP"], flush=True)
os.chdir("/etc/mill")
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    found = binaries.find_all(cache_root(os.environ), os.environ)
    missing = [binary.program.name for binary in found if binary.source is binaries.BinarySource.MISSING]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}; `headrace local binaries` builds them")
    kernel = [Path(f"/proc/sys/{name}").read_text() for name in ("kernel/panic", "vm/overcommit_memory")]
    with private_slot(tmp_path_factory.mktemp("n")) as slot:
        cluster.up(slot, gpus=2)
        try:
            yield slot
        finally:
            cluster.down(slot)
    assert [Path(f"/proc/sys/{name}").read_text() for name in ("kernel/panic", "vm/overcommit_memory")] == kernel


@pytest.fixture
async def kube(slot: Slot) -> AsyncIterator[Kube]:
    async with Kube.auto(kubeconfig=slot.kubeconfig) as client:
        yield client


def of(kind: str, name: str, api: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **fields}


def container(code: str, **fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "headrace/engine:dev", "command": ["python", "-c", code], **fields}


def pod_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


async def pods(kube: Kube, app: str) -> list[dict[str, Any]]:
    return await kube.list(PODS, NAMESPACE, f"app={app}")


async def poll() -> None:
    await asyncio.sleep(0.2)


async def fetch(url: str) -> str:
    """The body, as soon as there is one: the proxy and the volumes follow their watches a moment later."""
    while True:
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                if response.status == 200:
                    return await response.text()
        except aiohttp.ClientError:
            pass
        await poll()


async def first_words(kube: Kube, name: str) -> str:
    """The log of a running pod, as soon as there is something in it."""
    while not (text := await kube.logs(name, NAMESPACE)):
        await poll()
    return text


def mill(replicas: int) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "mill"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "config", "configMap": {"name": "mill"}}, {"name": "tmp", "emptyDir": {}}],
            "containers": [
                container(
                    SERVER,
                    env=[{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    ports=[{"name": "http", "containerPort": 8000}],
                    readinessProbe={"httpGet": {"path": "/greeting", "port": "http"}, "periodSeconds": 1},
                    livenessProbe={
                        "exec": {"command": ["test", "-s", "/var/run/secrets/kubernetes.io/serviceaccount/token"]},
                        "periodSeconds": 1,
                        "timeoutSeconds": 20,
                    },
                    securityContext=RESTRICTED,
                    volumeMounts=[{"name": "config", "mountPath": "/etc/mill"}, {"name": "tmp", "mountPath": "/tmp"}],
                )
            ],
        },
    }
    selector = {"matchLabels": {"app": "mill"}}
    return of("Deployment", "mill", "apps/v1", spec={"replicas": replicas, "selector": selector, "template": template})


async def test_a_deployment_serves_its_config_map_through_its_service(kube: Kube):
    await kube.create(of("ConfigMap", "mill", data={"greeting": "hello"}))
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    await kube.create(of("Service", "mill", spec={"selector": {"app": "mill"}, "ports": ports}))
    await kube.create(mill(2))
    while (await kube.get(DEPLOYMENTS, "mill", NAMESPACE) or {})["status"].get("readyReplicas") != 2:
        await poll()
    service = await kube.get(SERVICES, "mill", NAMESPACE)
    assert service is not None
    url = f"http://{service['spec']['clusterIP']}/greeting"
    assert await fetch(url) == "hello"
    running = await pods(kube, "mill")
    assert len({pod["status"]["podIP"] for pod in running}) == 2
    assert await first_words(kube, running[0]["metadata"]["name"]) == (
        f"serving as 65532 on {running[0]['status']['podIP']}\n"
    )
    await merge_patch(kube, CONFIG_MAPS, "mill", NAMESPACE, patch={"data": {"greeting": "goodbye"}})
    while await fetch(url) != "goodbye":
        await poll()


async def test_a_service_without_ready_pods_refuses(kube: Kube):
    service = await kube.get(SERVICES, "mill", NAMESPACE)
    assert service is not None
    await merge_patch(kube, DEPLOYMENTS, "mill", NAMESPACE, patch={"spec": {"replicas": 0}})
    while await pods(kube, "mill"):
        await poll()
    while True:
        try:
            _, writer = await asyncio.open_connection(service["spec"]["clusterIP"], 80)
        except ConnectionRefusedError:
            break
        writer.close()
        await poll()
    await kube.delete(DEPLOYMENTS, "mill", NAMESPACE)
    await kube.delete(SERVICES, "mill", NAMESPACE)


async def test_a_job_that_fails_is_tried_again(kube: Kube):
    spec = {"restartPolicy": "Never", "containers": [container("print('no'); raise SystemExit(3)")]}
    template = {"metadata": {"labels": {"app": "tries"}}, "spec": spec}
    await kube.create(of("Job", "tries", "batch/v1", spec={"backoffLimit": 1, "template": template}))
    while (await kube.get(JOBS, "tries", NAMESPACE) or {})["status"].get("failed") != 2:
        await poll()
    for pod in await pods(kube, "tries"):
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (3, "Error")
        assert await kube.logs(pod["metadata"]["name"], NAMESPACE) == "no\n"
    await kube.delete(JOBS, "tries", NAMESPACE)


async def test_the_third_pod_with_a_gpu_waits(kube: Kube):
    code = (
        "import os, time; print(os.environ['HEADRACE_PRETEND_GPU'], os.environ['NVIDIA_VISIBLE_DEVICES'], flush=True)"
    )
    gpu = container(code + "; time.sleep(600)", resources={"limits": {"nvidia.com/gpu": "1"}})
    for number in range(3):
        spec = {"terminationGracePeriodSeconds": 0, "containers": [gpu]}
        body = of("Pod", f"gpu-{number}", spec=spec)
        body["metadata"]["labels"] = {"app": "gpu"}
        await kube.create(body)
    while True:
        found = await pods(kube, "gpu")
        running = [pod for pod in found if pod["status"]["phase"] == "Running"]
        waiting = [pod for pod in found if pod["status"]["phase"] == "Pending" and pod["status"].get("conditions")]
        if len(running) == 2 and waiting and "Insufficient nvidia.com/gpu" in str(waiting[0]["status"]):
            break
        await poll()
    logs = [await first_words(kube, pod["metadata"]["name"]) for pod in running]
    assert sorted(logs) == ["true pretend-0\n", "true pretend-1\n"]
    await kube.delete(PODS, running[0]["metadata"]["name"], NAMESPACE)
    while (await kube.get(PODS, waiting[0]["metadata"]["name"], NAMESPACE) or {})["status"]["phase"] != "Running":
        await poll()
    for pod in found:
        await kube.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_seconds=0)


async def test_another_image_is_refused_with_the_reason(kube: Kube):
    await kube.create(of("Pod", "busybox", spec={"containers": [{"name": "c", "image": "busybox"}]}))
    while True:
        pod = await kube.get(PODS, "busybox", NAMESPACE)
        waiting = str((pod or {})["status"].get("containerStatuses"))
        if "this machine" in waiting:
            assert "ErrImagePull" in waiting or "ImagePullBackOff" in waiting
            break
        await poll()
    await kube.delete(PODS, "busybox", NAMESPACE, grace_seconds=0)


async def test_a_killed_runtime_and_kubelet_keep_their_pods(kube: Kube, slot: Slot):
    """The pod is neither restarted nor lost while both are replaced."""
    body = of(
        "Pod", "stays", spec={"containers": [container("import time; print('here', flush=True); time.sleep(600)")]}
    )
    await kube.create(body)
    while not pod_ready(pod := await kube.get(PODS, "stays", NAMESPACE) or body | {"status": {}}):
        await poll()
    before = pod["status"]["containerStatuses"][0]
    restart(slot, "runtime")
    restart(slot, "kubelet")
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container("import time; time.sleep(600)")]}
    await kube.create(of("Pod", "new", spec=spec))
    while not pod_ready(await kube.get(PODS, "new", NAMESPACE) or body | {"status": {}}):
        await poll()
    after = (await kube.get(PODS, "stays", NAMESPACE) or {})["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert after["state"] == before["state"]


async def test_the_api_server_answers_at_its_service(kube: Kube):
    service = await kube.get(SERVICES, "kubernetes", NAMESPACE)
    assert service is not None
    url = f"https://{service['spec']['clusterIP']}/version"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
        assert (await response.json())["minor"] == "36"


async def test_nothing_warned_of_a_bug(kube: Kube, slot: Slot):
    assert "Traceback" not in slot.log_file("runtime").read_text()
    assert "Traceback" not in slot.log_file("service_proxy").read_text()
    messages = [event.get("message", "") for event in await kube.list(EVENTS, NAMESPACE)]
    assert not [message for message in messages if "bug in the runtime" in message]


def restart(slot: Slot, name: str) -> None:
    """Kill a process of the node and start it again as the cluster did."""
    processes = Processes(slot)
    record = processes.alive()[name]
    record.identity.send(signal.SIGKILL)
    assert record.identity.wait(10)
    slot.ready_file(name).unlink(missing_ok=True)
    # A kubelet without its runtime gives up at once, so the runtime has to serve before.
    ready = slot.ready_file(name).exists if name == "runtime" else lambda: True
    processes.start(ProcessSpec(name, record.argv, ready=ready, env=slot.environment))
