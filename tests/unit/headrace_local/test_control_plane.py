"""Command lines of the control plane: loopback only, nothing unauthenticated; a slot for each test run."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_local.binaries import Binaries
from headrace_local.control_plane import (
    apiserver_spec,
    controller_manager_spec,
    etcd_spec,
    private_slot,
    scheduler_spec,
)
from headrace_local.go_modules import PROGRAMS
from headrace_local.layout import Slot
from headrace_local.pki import Pki, write_pki
from headrace_local.processes import ProcessSpec

Spec = Callable[[Slot, Pki, Binaries], ProcessSpec]
BINARIES = Binaries({entry.name: Path(f"/bin/{entry.name}") for entry in PROGRAMS})


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Slot:
    folder = tmp_path_factory.mktemp("control")
    return Slot(2, folder / "local" / "slot-2", folder)


@pytest.fixture(scope="module")
def pki(slot: Slot) -> Pki:
    return write_pki(slot, now=dt.datetime(2026, 11, 30, tzinfo=dt.UTC))


@pytest.mark.parametrize("make", [apiserver_spec, controller_manager_spec, scheduler_spec])
def test_everything_binds_loopback(slot: Slot, pki: Pki, make: Spec):
    assert "--bind-address=127.0.0.1" in make(slot, pki, BINARIES).argv


def test_etcd_asks_its_clients_and_peers_for_certificates(slot: Slot, pki: Pki):
    argv = etcd_spec(slot, pki, BINARIES).argv
    assert "--client-cert-auth" in argv
    assert "--peer-client-cert-auth" in argv
    assert "--listen-client-urls=https://127.0.0.1:16441" in argv
    assert not [word for word in argv if "http://" in word or "0.0.0.0" in word]


def test_services_get_loopback_addresses_and_kubelets_are_authorized_as_nodes(slot: Slot, pki: Pki):
    argv = apiserver_spec(slot, pki, BINARIES).argv
    assert "--service-cluster-ip-range=127.100.0.0/16" in argv
    assert "--authorization-mode=Node,RBAC" in argv
    assert "--enable-admission-plugins=NodeRestriction" in argv


def test_controllers_that_need_real_addresses_are_off(slot: Slot, pki: Pki):
    argv = controller_manager_spec(slot, pki, BINARIES).argv
    controllers = next(word for word in argv if word.startswith("--controllers=")).split("=")[1].split(",")
    assert controllers[0] == "*"
    assert "-endpointslice-controller" in controllers


@pytest.mark.parametrize("make", [etcd_spec, apiserver_spec, controller_manager_spec, scheduler_spec])
def test_nothing_is_ready_where_nothing_runs(slot: Slot, pki: Pki, make: Spec):
    assert not make(slot, pki, BINARIES).ready()


def test_two_test_runs_get_two_slots(tmp_path: Path):
    with private_slot(tmp_path / "a") as first, private_slot(tmp_path / "b") as second:
        assert first.number != second.number
        assert first.state_dir == tmp_path / "a" / "local" / f"slot-{first.number}"
    with private_slot(tmp_path / "c") as third:
        assert third.number >= 40
