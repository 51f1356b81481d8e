"""The operator and the command line with a kubeconfig that signs in by a command."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml
from exec_plugin import administrator, with_command

sys.path.insert(0, str(Path(__file__).parent))  # test folders are not packages

from operator_harness import account_kubeconfig, command_line, grant, operator, service

from headrace_client import resources as res
from headrace_client.connection import auto_connection
from headrace_client.kube import Kube
from headrace_operator.runtime.login import log_in


async def test_status_and_explain_sign_in_by_command(
    kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    await kube.create(service(namespace))
    path = with_command(kubeconfig, tmp_path, administrator(kubeconfig))
    assert "chat" in await command_line(path, "status", "-n", namespace)
    assert "maxNumSeqs" in await command_line(path, "explain", "chat", "-n", namespace)


async def test_the_operator_signs_in_by_command(kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    await grant(kube, namespace)
    with_token = await account_kubeconfig(kube, namespace, kubeconfig, tmp_path)
    token = yaml.safe_load(with_token.read_text())["users"][0]["user"]["token"]
    path = with_command(kubeconfig, tmp_path, {"token": token})
    await kube.create(service(namespace))
    async with operator(path, namespace, tmp_path) as running, asyncio.timeout(60):
        async for event in kube.watch(res.DEPLOYMENTS, namespace):
            if event.object["metadata"].get("name") == "chat":
                break
        async with aiohttp.ClientSession() as session, session.get(running.health) as answer:
            assert answer.status == 200
        assert [line for line in running.lines() if line["severity"] == "error"] == []


async def test_kopfs_session_checks_the_name_that_the_kubeconfig_gives(kubeconfig: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(kubeconfig.read_text())
    for name, right in (("kubernetes.default.svc", True), ("wrong.example", False)):
        document["clusters"][0]["cluster"]["tls-server-name"] = name
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        login = await log_in(auto_connection(kubeconfig=tmp_path / "config"))
        async with login.aiohttp_session as session:
            if right:
                async with session.get(f"{login.server}/readyz") as response:
                    assert await response.text() == "ok"
            else:
                with pytest.raises(aiohttp.ClientConnectorCertificateError, match=r"wrong\.example"):
                    await session.get(f"{login.server}/readyz")


async def test_kopfs_session_shows_the_newest_certificate(kubeconfig: Path, tmp_path: Path) -> None:
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    path = with_command(kubeconfig, tmp_path, {"token": "old", "expirationTimestamp": "2026-01-01T01:00:00Z"})
    login = await log_in(auto_connection(kubeconfig=path, clock=lambda: clock[0]))
    with_command(kubeconfig, tmp_path, administrator(kubeconfig))
    clock[0] += timedelta(hours=1)
    async with login.aiohttp_session as session, session.get(f"{login.server}{res.NODES.path()}") as response:
        assert response.status == 200
