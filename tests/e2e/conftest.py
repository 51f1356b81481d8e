"""One embedded cluster with the chart installed, for the tests of the whole system."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace_client.kube import Kube
from headrace_local import binaries, cluster
from headrace_local.control_plane import private_slot
from headrace_local.demo.client import demo_model
from headrace_local.demo.run import install_chart
from headrace_local.layout import Slot, cache_root


@pytest.fixture(scope="session")
def model() -> Path:
    """Folder of the demo model; made if it is not there."""
    return asyncio.run(demo_model())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    """A cluster with the operator running. Afterwards it is removed with everything that it started."""
    found = {binary.program.name: binary for binary in binaries.find_all(cache_root(os.environ), os.environ)}
    missing = [name for name, binary in found.items() if binary.source is binaries.BinarySource.MISSING]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}; `headrace local binaries` builds them")
    with private_slot(tmp_path_factory.mktemp("n")) as slot:
        cluster.up(slot, gpus=2)
        try:
            install_chart(slot, str(found["helm"].path))
            yield slot
        finally:
            cluster.down(slot)


@pytest.fixture
async def kube(installed: Slot) -> AsyncIterator[Kube]:
    """Client of that cluster with its administrator's rights."""
    async with Kube.auto(kubeconfig=installed.kubeconfig) as client:
        yield client
