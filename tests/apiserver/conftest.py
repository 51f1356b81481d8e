"""A real kube-apiserver and etcd for the session, our CRDs in it, and a namespace for each test.

Fixtures: `apiserver` (slot and PKI), `kubeconfig` (administrator), `kube` (open client), `namespace` (fresh).
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_client import resources as res
from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_local.binaries import Binaries, BinarySource, find_all
from headrace_local.control_plane import ApiServer, api_server, private_slot
from headrace_local.go_modules import API_SERVER_PROGRAMS
from headrace_local.layout import cache_root

HERE = Path(__file__).parent
CRD_FOLDER = HERE.parents[1] / "crds"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    found = find_all(cache_root(os.environ), os.environ, API_SERVER_PROGRAMS)
    missing = [binary.program.name for binary in found if binary.source is BinarySource.MISSING]
    if missing:
        pytest.skip(
            f"no {' and '.join(missing)}: set KUBEBUILDER_ASSETS, or run `headrace local up` once to build them"
        )
    binaries = Binaries({binary.program.name: binary.path for binary in found})
    folder = tmp_path_factory.mktemp("apiserver")
    with private_slot(folder) as slot, api_server(slot, binaries) as server:
        asyncio.run(_install_crds(server.kubeconfig))
        yield server


async def _install_crds(kubeconfig: Path) -> None:
    async with Kube.auto(kubeconfig=kubeconfig) as kube:
        for path in sorted(CRD_FOLDER.glob("*.yaml")):
            await kube.apply(yaml.safe_load(path.read_text()), field_manager="tests")
        for resource in (res.INFERENCE_SERVICES, res.TUNING_RUNS):
            await _served(kube, resource)


async def _served(kube: Kube, resource: res.ApiResource) -> None:
    """Wait until the API server serves the resource; it says itself when a CRD is established."""
    name = f"{resource.plural}.{resource.group}"
    async with asyncio.timeout(30):
        async for event in kube.watch(res.CUSTOM_RESOURCE_DEFINITIONS, field_selector=f"metadata.name={name}"):
            if _established(event.object):
                break
        while True:
            try:
                await kube.list(resource, "default")
                return
            except KubeError:
                await asyncio.sleep(0.1)


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # null until the server has looked at it
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


@pytest.fixture
def kubeconfig(apiserver: ApiServer) -> Path:
    return apiserver.kubeconfig


@pytest.fixture
async def kube(kubeconfig: Path) -> AsyncIterator[Kube]:
    async with Kube.auto(kubeconfig=kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(kube: Kube) -> str:
    """A namespace of its own. Not deleted: no namespace controller runs here, and the whole server goes."""
    name = f"test-{next(_NUMBERS)}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
