"""etcd, API server, controller manager and scheduler: command lines and readiness checks.

`api_server` runs only the first two, on a private slot: enough for tests of schemas, apply, RBAC and watches.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace_local import binaries as programs
from headrace_local.binaries import Binaries
from headrace_local.errors import LocalError
from headrace_local.go_modules import API_SERVER_PROGRAMS
from headrace_local.layout import MAX_SLOT, Slot, default_slot
from headrace_local.pki import Pki, write_pki
from headrace_local.probe import answers, tls
from headrace_local.processes import Processes, ProcessSpec
from headrace_local.progress import QuietSteps

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
CONTROL_PLANE = frozenset({ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER})
#: Slots for `private_slot`, far from those that people use.
PRIVATE_SLOTS = range(40, MAX_SLOT + 1)

#: EndpointSlices refuse loopback addresses, which all our pods have; our own proxy does that work. The others are
#: for clouds and pod networks, which do not exist here.
_CONTROLLERS_OFF = (
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "node-ipam-controller",
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
)


def etcd_spec(slot: Slot, pki: Pki, binaries: Binaries) -> ProcessSpec:
    """One member, over TLS with its own authority: write access to etcd means control of the cluster and this machine.

    No fsync: the state is not kept when the cluster ends.
    """
    peer = f"https://127.0.0.1:{slot.etcd_peer_port}"
    pair, ca = pki.etcd, pki.etcd_ca.cert
    context = tls(pki, pki.etcd_client, etcd=True)
    argv = [
        binaries["etcd"],
        f"--name={slot.name}",
        f"--data-dir={slot.etcd_dir}",
        f"--listen-client-urls={slot.etcd_url}",
        f"--advertise-client-urls={slot.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={slot.name}={peer}",
        f"--cert-file={pair.cert}",
        f"--key-file={pair.key}",
        f"--trusted-ca-file={ca}",
        "--client-cert-auth",
        f"--peer-cert-file={pair.cert}",
        f"--peer-key-file={pair.key}",
        f"--peer-trusted-ca-file={ca}",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",
        "--logger=zap",
        "--log-level=warn",
    ]
    return ProcessSpec(ETCD, argv, ready=lambda: answers(f"{slot.etcd_url}/health", context))


def apiserver_spec(slot: Slot, pki: Pki, binaries: Binaries) -> ProcessSpec:
    """The API server on loopback, with Node and RBAC authorization and ClusterIPs from 127.0.0.0/8."""
    context = tls(pki, pki.admin)
    kubelet = pki.apiserver_kubelet_client
    argv = [
        binaries["kube-apiserver"],
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={slot.apiserver_port}",
        f"--service-cluster-ip-range={slot.service_cidr}",
        "--endpoint-reconciler-type=none",
        f"--etcd-servers={slot.etcd_url}",
        f"--etcd-cafile={pki.etcd_ca.cert}",
        f"--etcd-certfile={pki.etcd_client.cert}",
        f"--etcd-keyfile={pki.etcd_client.key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki.ca.cert}",
        f"--tls-cert-file={pki.apiserver.cert}",
        f"--tls-private-key-file={pki.apiserver.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.service_account_public_key}",
        f"--service-account-signing-key-file={pki.service_account_key}",
        f"--kubelet-certificate-authority={pki.ca.cert}",
        f"--kubelet-client-certificate={kubelet.cert}",
        f"--kubelet-client-key={kubelet.key}",
        "--kubelet-preferred-address-types=Hostname",
        "--profiling=false",
    ]
    return ProcessSpec(
        APISERVER, argv, ready=lambda: answers(f"{slot.apiserver_url}/readyz", context), ready_seconds=120
    )


def controller_manager_spec(slot: Slot, pki: Pki, binaries: Binaries) -> ProcessSpec:
    """All controllers except those for clouds, pod networks and EndpointSlices."""
    context = tls(pki)
    url = f"https://127.0.0.1:{slot.controller_manager_port}/healthz"
    controllers = ",".join(["*", *(f"-{name}" for name in _CONTROLLERS_OFF)])
    argv = [
        binaries["kube-controller-manager"],
        "--bind-address=127.0.0.1",
        f"--secure-port={slot.controller_manager_port}",
        f"--kubeconfig={pki.controller_manager_kubeconfig}",
        f"--tls-cert-file={pki.controller_manager.cert}",
        f"--tls-private-key-file={pki.controller_manager.key}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--root-ca-file={pki.ca.cert}",
        f"--service-account-private-key-file={pki.service_account_key}",
        f"--controllers={controllers}",
        "--profiling=false",
    ]
    return ProcessSpec(CONTROLLER_MANAGER, argv, ready=lambda: answers(url, context))


def scheduler_spec(slot: Slot, pki: Pki, binaries: Binaries) -> ProcessSpec:
    """The scheduler with its default configuration."""
    context = tls(pki)
    url = f"https://127.0.0.1:{slot.scheduler_port}/healthz"
    argv = [
        binaries["kube-scheduler"],
        "--bind-address=127.0.0.1",
        f"--secure-port={slot.scheduler_port}",
        f"--kubeconfig={pki.scheduler_kubeconfig}",
        f"--tls-cert-file={pki.scheduler.cert}",
        f"--tls-private-key-file={pki.scheduler.key}",
        "--leader-elect=false",
        "--profiling=false",
    ]
    return ProcessSpec(SCHEDULER, argv, ready=lambda: answers(url, context))


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server: its slot (`slot.kubeconfig` opens it as administrator) and the paths of its PKI."""

    slot: Slot
    pki: Pki

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.slot.kubeconfig


@contextlib.contextmanager
def api_server(slot: Slot, binaries: Binaries | None = None) -> Iterator[ApiServer]:
    """Run etcd and the API server on the slot while the `with` block runs; LocalError if one fails to start.

    Without `binaries` they are looked for, and built if need be.
    """
    found = binaries or programs.ensure(slot.cache_dir, os.environ, QuietSteps(), API_SERVER_PROGRAMS)
    pki = write_pki(slot, now=dt.datetime.now(dt.UTC))  # noqa: TID251 - certificates are valid from now
    processes = Processes(slot)
    try:
        processes.start(etcd_spec(slot, pki, found))
        processes.start(apiserver_spec(slot, pki, found))
        yield ApiServer(slot, pki)
    finally:
        processes.stop_all()


@contextlib.contextmanager
def private_slot(folder: Path) -> Iterator[Slot]:
    """Reserve a free slot while the `with` block runs, with its state in `folder` and the usual cache.

    The number is held by a file lock in the machine's temporary folder, so parallel test runs get different ones.
    """
    for number in PRIVATE_SLOTS:
        slot = default_slot(number, {**os.environ, "HEADRACE_STATE": str(folder)})
        with _held(Path("/tmp") / f"headrace-private-slot-{number}.lock") as held:  # noqa: S108 - one place per machine
            if held and all(port_is_free(port) for port in slot.ports.values()):
                yield slot
                return
    raise LocalError(
        f"No free slot among {PRIVATE_SLOTS.start} to {PRIVATE_SLOTS.stop - 1}.",
        why="Each is locked by another test run, or one of its ports is in use.",
        todo="Wait for the other runs, or stop what is left of them.",
    )


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Try to hold a lock on the file while the block runs; yields whether that worked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def port_is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            return False
    return True
