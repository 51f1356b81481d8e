"""The whole embedded cluster: up, a pod on it, parts of it killed, down; and nothing is left on the machine."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace_client.kube import Kube
from headrace_client.prom import Prometheus
from headrace_client.resources import NODES, PODS
from headrace_local import binaries, cluster
from headrace_local.cluster import SlotState
from headrace_local.control_plane import port_is_free, private_slot
from headrace_local.layout import Slot, cache_root
from headrace_local.leftovers import find_leftovers
from headrace_local.processes import Processes, marked_processes

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="the node's mounts need root"),
]

SERVER = (
    "import http.server, os; http.server.ThreadingHTTPServer((os.environ['POD_IP'], 8000), "
    "http.server.SimpleHTTPRequestHandler).serve_forever()"
)
LABELS = {
    "app": "mill",
    "app.kubernetes.io/managed-by": "headrace",
    "headrace.dev/service": "mill",
    "headrace.dev/track": "stable",
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "mill", "namespace": "default", "labels": LABELS},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "headrace/engine:test",
                "command": ["python", "-c", SERVER],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ]
    },
}
SERVICE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "mill", "namespace": "default"},
    "spec": {"selector": {"app": "mill"}, "ports": [{"name": "http", "port": 8000}]},
}


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    found = binaries.find_all(cache_root(os.environ), os.environ)
    missing = [binary.program.name for binary in found if binary.source is binaries.BinarySource.MISSING]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}; `headrace local binaries` builds them")
    with private_slot(tmp_path_factory.mktemp("c")) as slot:
        assert cluster.up(slot, gpus=2)
        yield slot
        cluster.down(slot)


async def until_ready(kube: Kube) -> dict[str, Any]:
    while True:
        pod = await kube.get(PODS, "mill", "default")
        assert pod is not None
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])):
            return pod
        await asyncio.sleep(0.2)


async def test_the_node_offers_pretend_gpus(slot: Slot):
    async with Kube.auto(kubeconfig=slot.kubeconfig) as kube:
        node = await kube.get(NODES, slot.node_name)
    assert node is not None
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert node["metadata"]["labels"]["headrace.dev/pretend-gpus"] == "true"


async def test_a_pod_runs_is_reached_by_its_service_and_found_by_prometheus(slot: Slot):
    async with Kube.auto(kubeconfig=slot.kubeconfig) as kube, asyncio.timeout(90):
        service = await kube.create(SERVICE)
        await kube.create(POD)
        pod = await until_ready(kube)
        url = f"http://{service['spec']['clusterIP']}:8000/"
        assert await status_of(url) == 200
        labels = await scraped_labels(slot)
    assert labels["pod"] == "mill"
    assert labels["pod_uid"] == pod["metadata"]["uid"]
    assert (labels["namespace"], labels["service"], labels["track"]) == ("default", "mill", "stable")


async def status_of(url: str) -> int:
    while True:  # the proxy hears of a ready pod by its watch, a moment later
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return response.status
        except aiohttp.ClientError:
            await asyncio.sleep(0.1)


async def scraped_labels(slot: Slot) -> dict[str, str]:
    async with Prometheus(slot.prometheus_url) as prometheus:
        while True:
            samples = await prometheus.query("up")
            if samples:
                return dict(samples[0].labels)
            await asyncio.sleep(0.2)


def test_up_again_changes_nothing(slot: Slot):
    before = Processes(slot).alive()
    assert not cluster.up(slot, gpus=2)
    assert Processes(slot).alive() == before


def test_down_leaves_nothing_whatever_was_killed_before(slot: Slot):
    alive = Processes(slot).alive()
    for name in ("kubelet", "runtime", "kube-apiserver"):
        alive[name].identity.send(signal.SIGKILL)
        assert alive[name].identity.wait(10)
    assert cluster.status(slot).state is SlotState.BROKEN
    cluster.down(slot)
    assert cluster.status(slot).state is SlotState.ABSENT
    assert marked_processes(slot.state_dir) == []
    assert not find_leftovers(slot, port_is_free)
    assert str(slot.state_dir) not in Path("/proc/self/mounts").read_text()
    assert [path.name for path in slot.state_dir.iterdir()] == ["logs"]
