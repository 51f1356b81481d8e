"""etcd and the API server, the real ones, on a slot of their own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_client.errors import Forbidden
from headrace_client.kube import Kube
from headrace_client.resources import CLUSTER_ROLES, NAMESPACES, PODS, SERVICES
from headrace_local import binaries
from headrace_local.control_plane import APISERVER, ETCD, ApiServer, api_server, port_is_free, private_slot
from headrace_local.go_modules import API_SERVER_PROGRAMS
from headrace_local.layout import cache_root
from headrace_local.leftovers import find_leftovers
from headrace_local.node_setup import apply, roles
from headrace_local.probe import answers, tls
from headrace_local.processes import Processes

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    found = binaries.find_all(cache_root(os.environ), os.environ, API_SERVER_PROGRAMS)
    missing = [binary.program.name for binary in found if binary.source is binaries.BinarySource.MISSING]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}; `headrace local binaries` builds them")
    with private_slot(tmp_path_factory.mktemp("api")) as slot:
        with api_server(slot) as server:
            apply(slot, roles())
            yield server
        assert not find_leftovers(slot, port_is_free), "down leaves no process, mount or port"
        assert not (slot.pids_dir).exists() or not list(slot.pids_dir.iterdir())


def test_it_is_healthy(api: ApiServer):
    assert list(Processes(api.slot).alive()) == [ETCD, APISERVER]
    assert answers(f"{api.slot.apiserver_url}/livez", tls(api.pki, api.pki.admin))


async def test_a_namespace_can_be_created_and_deleted(api: ApiServer):
    async with Kube.auto(kubeconfig=api.kubeconfig) as kube:
        await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "headwater"}})
        found = await kube.get(NAMESPACES, "headwater")
        assert found is not None
        assert found["status"]["phase"] == "Active"


async def test_services_get_loopback_addresses(api: ApiServer):
    async with Kube.auto(kubeconfig=api.kubeconfig) as kube:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mill", "namespace": "default"},
            "spec": {"ports": [{"port": 8000}]},
        }
        created = await kube.create(service)
        assert created["spec"]["clusterIP"].startswith(api.slot.service_cidr.removesuffix("0.0/16"))


async def test_prometheus_may_list_pods_and_nothing_else(api: ApiServer):
    async with Kube.auto(kubeconfig=api.pki.prometheus_kubeconfig) as kube:
        await kube.list(PODS)
        with pytest.raises(Forbidden):
            await kube.list(SERVICES)
        with pytest.raises(Forbidden):
            await kube.list(CLUSTER_ROLES)


def test_etcd_refuses_clients_without_its_own_certificate(api: ApiServer):
    health = f"{api.slot.etcd_url}/health"
    assert answers(health, tls(api.pki, api.pki.etcd_client, etcd=True))
    assert not answers(health, tls(api.pki, etcd=True))
    assert not answers(health, tls(api.pki, api.pki.admin, etcd=True))


def test_the_kubeconfig_is_where_the_slot_says(api: ApiServer):
    assert Path(api.kubeconfig) == api.slot.kubeconfig
