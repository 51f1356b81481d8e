"""Keys, certificates and kubeconfigs of one embedded cluster.

Two authorities: one that the API server trusts for its clients (and that signs its own serving certificate), one for
etcd alone, so that no kubelet or scheduler certificate opens the store. All keys are P-256 and readable by their owner
only. Each `up` makes everything new: nothing from an earlier cluster is valid in a later one.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace_local.kubeconfig import client_kubeconfig
from headrace_local.layout import Slot

VALIDITY = dt.timedelta(days=3650)
#: Certificates are valid from a little before they are made: clocks of one machine may differ (suspended VMs).
BACKDATED = dt.timedelta(minutes=5)
MASTERS = "system:masters"
NODES = "system:nodes"
PROMETHEUS_USER = "headrace-prometheus"
SERVICE_PROXY_USER = "headrace-service-proxy"


class CertificateUsage(Enum):
    """What a certificate may be used for."""

    CLIENT = "client"
    SERVER = "server"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Paths of a certificate and its key, both PEM."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Pki:
    """Where each file lies (see `write_pki`); `folder` is the slot's pki folder."""

    folder: Path

    def pair(self, name: str) -> KeyPair:
        """The certificate and key called `name`."""
        return KeyPair(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def ca(self) -> KeyPair:
        """The cluster's authority."""
        return self.pair("ca")

    @property
    def etcd_ca(self) -> KeyPair:
        """The authority of etcd's clients and peers."""
        return self.pair("etcd-ca")

    @property
    def etcd(self) -> KeyPair:
        """Etcd's serving and peer certificate."""
        return self.pair("etcd")

    @property
    def etcd_client(self) -> KeyPair:
        """The API server's client certificate towards etcd."""
        return self.pair("etcd-client")

    @property
    def apiserver(self) -> KeyPair:
        """The API server's serving certificate."""
        return self.pair("apiserver")

    @property
    def apiserver_kubelet_client(self) -> KeyPair:
        """The API server's client certificate towards the kubelet (logs, exec)."""
        return self.pair("apiserver-kubelet-client")

    @property
    def admin(self) -> KeyPair:
        """The administrator's client certificate (system:masters)."""
        return self.pair("admin")

    @property
    def kubelet_client(self) -> KeyPair:
        """The kubelet's client certificate towards the API server."""
        return self.pair("kubelet-client")

    @property
    def kubelet_server(self) -> KeyPair:
        """The kubelet's serving certificate."""
        return self.pair("kubelet-server")

    @property
    def controller_manager(self) -> KeyPair:
        """The controller manager's certificate, towards the API server and on its health port."""
        return self.pair("controller-manager")

    @property
    def scheduler(self) -> KeyPair:
        """The scheduler's certificate, towards the API server and on its health port."""
        return self.pair("scheduler")

    @property
    def service_account_key(self) -> Path:
        """The private key that signs service-account tokens."""
        return self.folder / "service-account.key"

    @property
    def service_account_public_key(self) -> Path:
        """The key that checks service-account tokens."""
        return self.folder / "service-account.pub"

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of the component `name`."""
        return self.folder / f"{name}.kubeconfig"

    @property
    def kubelet_kubeconfig(self) -> Path:
        """The kubelet's kubeconfig (system:node:<name>)."""
        return self.kubeconfig("kubelet")

    @property
    def controller_manager_kubeconfig(self) -> Path:
        """The controller manager's kubeconfig."""
        return self.kubeconfig("controller-manager")

    @property
    def scheduler_kubeconfig(self) -> Path:
        """The scheduler's kubeconfig."""
        return self.kubeconfig("scheduler")

    @property
    def prometheus_kubeconfig(self) -> Path:
        """A kubeconfig that may list pods (user `headrace-prometheus`)."""
        return self.kubeconfig("prometheus")

    @property
    def service_proxy_kubeconfig(self) -> Path:
        """A kubeconfig that may list Services and pods (user `headrace-service-proxy`)."""
        return self.kubeconfig("service-proxy")


def pki_of(slot: Slot) -> Pki:
    """The paths of the slot's PKI, whether or not the files exist yet."""
    return Pki(slot.pki_dir)


def write_pki(slot: Slot, *, now: dt.datetime) -> Pki:
    """Make every key, certificate and kubeconfig of the slot, replacing existing ones; return their paths.

    `now` is an aware UTC time from which the certificates are valid, for ten years. OSError if a file can't be written.
    """
    pki = pki_of(slot)
    shutil.rmtree(pki.folder, ignore_errors=True)
    pki.folder.mkdir(parents=True, mode=0o700)
    cluster = _Authority.create("headrace-local", now)
    etcd = _Authority.create("headrace-local-etcd", now)
    _write_pair(pki.ca, cluster.certificate, cluster.key)
    _write_pair(pki.etcd_ca, etcd.certificate, etcd.key)
    for pair, identity in _etcd_identities(pki):
        etcd.write(pair, identity, now)
    for pair, identity in _cluster_identities(pki, slot):
        cluster.write(pair, identity, now)
    _write_service_account_keys(pki)
    _write_kubeconfigs(pki, slot)
    return pki


@dataclass(frozen=True, slots=True)
class _Identity:
    name: str
    usage: CertificateUsage
    organization: str | None = None
    hosts: Sequence[str] = ()


def _etcd_identities(pki: Pki) -> list[tuple[KeyPair, _Identity]]:
    return [
        (pki.etcd, _Identity("etcd", CertificateUsage.PEER, hosts=("localhost", "127.0.0.1"))),
        (pki.etcd_client, _Identity("kube-apiserver", CertificateUsage.CLIENT)),
    ]


def _cluster_identities(pki: Pki, slot: Slot) -> list[tuple[KeyPair, _Identity]]:
    node = slot.node_name
    service_names = [f"kubernetes{tail}" for tail in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
    apiserver_hosts = ("localhost", "127.0.0.1", slot.kubernetes_service_ip, *service_names)
    return [
        (pki.apiserver, _Identity("kube-apiserver", CertificateUsage.SERVER, hosts=apiserver_hosts)),
        (pki.apiserver_kubelet_client, _Identity("kube-apiserver-kubelet-client", CertificateUsage.CLIENT, MASTERS)),
        (pki.admin, _Identity("headrace-admin", CertificateUsage.CLIENT, MASTERS)),
        (pki.kubelet_client, _Identity(f"system:node:{node}", CertificateUsage.CLIENT, NODES)),
        (
            pki.kubelet_server,
            _Identity(f"system:node:{node}", CertificateUsage.SERVER, NODES, hosts=(node, "127.0.0.1")),
        ),
        # Client and server in one: their health ports show the same certificate.
        (
            pki.controller_manager,
            _Identity("system:kube-controller-manager", CertificateUsage.PEER, hosts=(node, "127.0.0.1")),
        ),
        (pki.scheduler, _Identity("system:kube-scheduler", CertificateUsage.PEER, hosts=(node, "127.0.0.1"))),
        (pki.pair("prometheus"), _Identity(PROMETHEUS_USER, CertificateUsage.CLIENT)),
        (pki.pair("service-proxy"), _Identity(SERVICE_PROXY_USER, CertificateUsage.CLIENT)),
    ]


def _write_kubeconfigs(pki: Pki, slot: Slot) -> None:
    pairs = {
        slot.kubeconfig: pki.admin,
        pki.kubelet_kubeconfig: pki.kubelet_client,
        pki.controller_manager_kubeconfig: pki.controller_manager,
        pki.scheduler_kubeconfig: pki.scheduler,
        pki.prometheus_kubeconfig: pki.pair("prometheus"),
        pki.service_proxy_kubeconfig: pki.pair("service-proxy"),
    }
    for path, pair in pairs.items():
        text = client_kubeconfig(
            name=slot.name,
            server=slot.apiserver_url,
            ca=pki.ca.cert.read_bytes(),
            cert=pair.cert.read_bytes(),
            key=pair.key.read_bytes(),
        )
        _write_private(path, text.encode())


def _write_service_account_keys(pki: Pki) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_private(pki.service_account_key, _private_pem(key))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pki.service_account_public_key.write_bytes(public)


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str, now: dt.datetime) -> _Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name, None)
        builder = (
            _builder(subject, subject, key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def write(self, pair: KeyPair, identity: _Identity, now: dt.datetime) -> None:
        """Issue a certificate for the identity and write both files."""
        key = ec.generate_private_key(ec.SECP256R1())
        _write_pair(pair, self._issue(identity, key.public_key(), now), key)

    def _issue(self, identity: _Identity, public: ec.EllipticCurvePublicKey, now: dt.datetime) -> x509.Certificate:
        subject = _subject(identity.name, identity.organization)
        issuer_key = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        builder = (
            _builder(subject, self.certificate.subject, public, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_EXTENDED_USAGE[identity.usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key),
                critical=False,
            )
        )
        if identity.hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in identity.hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


_EXTENDED_USAGE = {
    CertificateUsage.CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    CertificateUsage.SERVER: [ExtendedKeyUsageOID.SERVER_AUTH],
    CertificateUsage.PEER: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
}


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(pair: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(pair.key, _private_pem(key))


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # "TraditionalOpenSSL" (SEC 1) is what every Kubernetes component reads for EC keys, service-account keys included.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
