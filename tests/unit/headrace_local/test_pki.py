"""Certificates: each chains to the right authority, says the right name, and is good for its use only."""

import base64
import datetime as dt
import ipaddress
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from headrace_local.layout import Slot
from headrace_local.pki import KeyPair, Pki, write_pki

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Slot:
    folder = tmp_path_factory.mktemp("pki")
    return Slot(1, folder / "local" / "slot-1", folder / "cache")


@pytest.fixture(scope="module")
def pki(slot: Slot) -> Pki:
    return write_pki(slot, now=NOW)


def load(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.cert.read_bytes())


def names(certificate: x509.Certificate) -> tuple[list[str], list[str]]:
    def values(oid: x509.ObjectIdentifier) -> list[str]:
        return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]

    return values(NameOID.COMMON_NAME), values(NameOID.ORGANIZATION_NAME)


@pytest.mark.parametrize("host", ["localhost", "kubernetes.default.svc", "127.0.0.1", "127.98.0.1"])
def test_the_api_server_is_trusted_under_each_of_its_names(pki: Pki, host: str):
    subject = x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    verifier = PolicyBuilder().store(Store([load(pki.ca)])).time(NOW).build_server_verifier(subject)
    assert verifier.verify(load(pki.apiserver), []) is not None


def test_the_api_server_is_not_trusted_under_another_name(pki: Pki):
    verifier = PolicyBuilder().store(Store([load(pki.ca)])).time(NOW).build_server_verifier(x509.DNSName("example.org"))
    with pytest.raises(VerificationError):
        verifier.verify(load(pki.apiserver), [])


@pytest.mark.parametrize(
    ("pair", "user", "groups"),
    [
        ("admin", "headrace-admin", ["system:masters"]),
        ("kubelet-client", "system:node:localhost", ["system:nodes"]),
        ("controller-manager", "system:kube-controller-manager", []),
        ("scheduler", "system:kube-scheduler", []),
        ("prometheus", "headrace-prometheus", []),
        ("service-proxy", "headrace-service-proxy", []),
        ("apiserver-kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"]),
    ],
)
def test_clients_have_their_users_and_groups(pki: Pki, pair: str, user: str, groups: list[str]):
    certificate = load(pki.pair(pair))
    assert names(certificate) == ([user], groups)
    certificate.verify_directly_issued_by(load(pki.ca))
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH in uses


def test_a_cluster_certificate_does_not_open_etcd(pki: Pki):
    load(pki.etcd_client).verify_directly_issued_by(load(pki.etcd_ca))
    with pytest.raises(ValueError, match="Issuer"):
        load(pki.admin).verify_directly_issued_by(load(pki.etcd_ca))


def test_serving_certificates_can_not_be_shown_by_clients(pki: Pki):
    for pair in (pki.apiserver, pki.kubelet_server):
        uses = load(pair).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_validity_starts_a_little_before_now(pki: Pki):
    certificate = load(pki.admin)
    assert certificate.not_valid_before_utc == NOW - dt.timedelta(minutes=5)
    assert certificate.not_valid_after_utc == NOW + dt.timedelta(days=3650)


def test_keys_are_private_and_belong_to_their_certificates(pki: Pki):
    assert stat.S_IMODE(pki.folder.stat().st_mode) == 0o700
    for key_file in pki.folder.glob("*.key"):
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        cert_file = key_file.with_suffix(".crt")
        if cert_file.exists():
            assert x509.load_pem_x509_certificate(cert_file.read_bytes()).public_key() == key.public_key()


def test_the_service_account_key_pair_fits(pki: Pki):
    private = serialization.load_pem_private_key(pki.service_account_key.read_bytes(), None)
    assert private.public_key() == serialization.load_pem_public_key(pki.service_account_public_key.read_bytes())


def test_kubeconfigs_carry_everything_inside(slot: Slot, pki: Pki):
    config = yaml.safe_load(slot.kubeconfig.read_text())
    assert stat.S_IMODE(slot.kubeconfig.stat().st_mode) == 0o600
    assert config["current-context"] == "headrace-local-1"
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:16420"
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == pki.admin.cert.read_bytes()
    assert base64.b64decode(user["client-key-data"]) == pki.admin.key.read_bytes()
    kubelet = yaml.safe_load(pki.kubelet_kubeconfig.read_text())["users"][0]["user"]
    assert base64.b64decode(kubelet["client-certificate-data"]) == pki.kubelet_client.cert.read_bytes()


def test_writing_again_leaves_nothing_of_before(tmp_path: Path):
    slot = Slot(0, tmp_path / "local" / "slot-0", tmp_path)
    first = load(write_pki(slot, now=NOW).ca)
    (slot.pki_dir / "stray").touch()
    second = load(write_pki(slot, now=NOW).ca)
    assert first != second
    assert not (slot.pki_dir / "stray").exists()
