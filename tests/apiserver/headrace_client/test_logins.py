"""Every way of signing in that kubeconfigs of real clusters use, against the real API server."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from exec_plugin import administrator, with_command

from headrace_client import resources as res
from headrace_client.connection import auto_connection
from headrace_client.errors import Forbidden, Unavailable
from headrace_client.kube import Kube
from headrace_client.transport import Retry


async def token_of(kube: Kube, namespace: str) -> str:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa", "namespace": namespace}}
    await kube.apply(account, field_manager="tests")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/sa/token"
    answer = json.loads(await kube.raw("POST", path, body=request))
    return str(answer["status"]["token"])


async def test_a_command_that_gives_a_token(kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    path = with_command(kubeconfig, tmp_path, {"token": await token_of(kube, namespace)})
    async with Kube.auto(kubeconfig=path) as client:
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:sa"):
            await client.list(res.NODES)


async def test_a_command_that_gives_a_client_certificate(kubeconfig: Path, tmp_path: Path) -> None:
    path = with_command(kubeconfig, tmp_path, administrator(kubeconfig))
    async with Kube.auto(kubeconfig=path) as client:
        assert await client.raw("GET", "/readyz") == "ok"


async def test_a_refused_token_is_asked_for_again(kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    path = with_command(kubeconfig, tmp_path, {"token": "nobody's"})
    async with Kube.auto(kubeconfig=path) as client:
        with pytest.raises(Forbidden, match="Unauthorized"):
            await client.list(res.NODES)
        with_command(kubeconfig, tmp_path, {"token": await token_of(kube, namespace)})
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:sa"):
            await client.list(res.NODES)


async def test_a_new_certificate_needs_no_restart(kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """A token first, then a certificate: the open connections know nothing of the certificate."""
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    status = {"token": await token_of(kube, namespace), "expirationTimestamp": "2026-01-01T01:00:00Z"}
    path = with_command(kubeconfig, tmp_path, status)
    async with Kube(auto_connection(kubeconfig=path, clock=lambda: clock[0])) as client:
        assert "gitVersion" in await client.raw("GET", "/version")
        with_command(kubeconfig, tmp_path, administrator(kubeconfig))
        clock[0] += timedelta(hours=1)
        assert await client.raw("GET", "/readyz") == "ok"
        assert await client.list(res.NODES) == []
    assert (tmp_path / "runs").read_text() == ".."


async def test_the_name_in_the_servers_certificate_may_be_another(kubeconfig: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    for name, right in (("kubernetes.default.svc", True), ("wrong.example", False)):
        cluster["tls-server-name"] = name
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        async with Kube(auto_connection(kubeconfig=tmp_path / "config"), retry=Retry(attempts=1)) as client:
            if right:
                assert await client.raw("GET", "/readyz") == "ok"
            else:
                with pytest.raises(Unavailable, match=r"certificate is not valid for 'wrong\.example'"):
                    await client.raw("GET", "/readyz")
