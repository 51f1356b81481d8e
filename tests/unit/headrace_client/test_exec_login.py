"""Logins by a command: what EKS, GKE and AKS write into a kubeconfig."""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_client import resources as res
from headrace_client.connection import Connection, auto_connection
from headrace_client.errors import KubeconfigError

API_VERSION = "client.authentication.k8s.io/v1"
START = datetime(2026, 1, 1, tzinfo=UTC)
PLUGIN = """
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "runs").open("a") as runs:
    info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
    print(json.dumps([sys.argv[1:], os.environ.get("FLAVOUR"), info]), file=runs)
sys.stderr.write("x" * 1_000_000 if os.environ.get("FLAVOUR") == "chatty" else "")
print((here / "answer").read_text())
"""


class Plugin:
    """A login command that prints the content of the file `answer`, and records its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "plugin.py").write_text(PLUGIN)

    def user(self, **more: Any) -> dict[str, Any]:
        return {
            "exec": {
                "apiVersion": API_VERSION,
                "command": sys.executable,
                "args": [str(self.folder / "plugin.py"), "get-token"],
                "interactiveMode": "IfAvailable",
                **more,
            }
        }

    def answers(self, status: Any, version: str = API_VERSION) -> "Plugin":
        body = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        (self.folder / "answer").write_text(json.dumps(body))
        return self

    def runs(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]

    def connection(self, cluster: Any = None, clock: Any = None, **more: Any) -> Connection:
        path = self.folder / "config"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": cluster or {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "c", "user": self.user(**more)}],
        }
        path.write_text(yaml.safe_dump(config))
        return auto_connection(kubeconfig=path, environ={}, clock=clock)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_calls_carry_the_commands_token(double: Any, plugin: Plugin) -> None:
    double.then(double.json({}))
    plugin.answers({"token": "t1"})
    async with double.kube(user=plugin.user()) as kube:
        await kube.get(res.CONFIG_MAPS, "a", "n")
    assert double.seen[0].headers["Authorization"] == "Bearer t1"


async def test_it_runs_again_when_its_token_has_expired(plugin: Plugin) -> None:
    clock = [START]
    plugin.answers({"token": "t1", "expirationTimestamp": "2026-01-01T00:15:00Z"})
    found = plugin.connection(clock=lambda: clock[0])
    assert (await found.credentials()).authorization == "Bearer t1"
    plugin.answers({"token": "t2", "expirationTimestamp": "2026-01-01T00:30:00Z"})
    clock[0] += timedelta(minutes=14, seconds=59)
    assert (await found.credentials()).authorization == "Bearer t1"
    clock[0] += timedelta(seconds=1)
    assert (await found.credentials()).authorization == "Bearer t2"
    assert len(plugin.runs()) == 2


async def test_a_token_without_an_expiry_is_good_until_it_is_refused(double: Any, plugin: Plugin) -> None:
    async def refuse(request: Any) -> Any:
        plugin.answers({"token": "t2"})
        return await double.failure(401, "Unauthorized")(request)

    double.then(double.json({}), refuse, double.json({}, 201))
    plugin.answers({"token": "t1"})
    async with double.kube(user=plugin.user()) as kube:
        await kube.get(res.CONFIG_MAPS, "a", "n")
        await kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}})
    assert [item.headers["Authorization"] for item in double.seen] == ["Bearer t1", "Bearer t1", "Bearer t2"]
    assert len(plugin.runs()) == 2


async def test_a_client_certificate_is_used_until_it_expires(plugin: Plugin) -> None:
    certificate, key = "a certificate", "a key"
    clock = [START]
    status = {"clientCertificateData": certificate, "clientKeyData": key, "expirationTimestamp": "2026-01-01T01:00:00Z"}
    plugin.answers(status)
    found = plugin.connection(clock=lambda: clock[0])
    first = await found.credentials()
    assert first.headers() == {}
    assert Path(first.configuration.cert_file).read_text() == certificate
    assert Path(first.configuration.key_file).read_text() == key
    plugin.answers({**status, "clientCertificateData": certificate + "\n"})
    clock[0] += timedelta(hours=1)
    assert (await found.credentials()).tls != first.tls


async def test_a_command_that_asks_for_it_gets_the_cluster(plugin: Plugin) -> None:
    (plugin.folder / "ca.pem").write_text("pem")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": "ca.pem", "extensions": [extension]}
    plugin.answers({"token": "t"})
    await plugin.connection(cluster, provideClusterInfo=True, env=[{"name": "FLAVOUR", "value": "v"}]).credentials()
    arguments, flavour, info = plugin.runs()[0]
    assert (arguments, flavour) == (["get-token"], "v")
    assert info["apiVersion"] == API_VERSION
    assert info["spec"]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": "cGVt",
        "config": {"audience": "x"},
    }


async def test_a_command_may_be_relative_to_the_kubeconfig(plugin: Plugin) -> None:
    script = plugin.folder / "bin" / "login"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {plugin.folder}/plugin.py "$@"\n')
    script.chmod(0o755)
    plugin.answers({"token": "t"})
    found = plugin.connection(command="./bin/login", args=None)
    assert (await found.credentials()).authorization == "Bearer t"


async def test_a_command_may_write_much_to_stderr(plugin: Plugin) -> None:
    plugin.answers({"token": "t"})
    found = plugin.connection(env=[{"name": "FLAVOUR", "value": "chatty"}])
    assert (await found.credentials()).authorization == "Bearer t"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"status": {}}, "gave neither a token nor a client certificate with its key"),
        ({"status": {"clientCertificateData": "x"}}, "gave neither"),
        (
            {"status": {"token": "t"}, "apiVersion": "client.authentication.k8s.io/v1beta1"},
            "answered in .*v1beta1, but",
        ),
        ({}, "wrote no ExecCredential"),
        ("nothing", "wrote no ExecCredential"),
    ],
)
async def test_an_unusable_answer_is_an_error(plugin: Plugin, answer: Any, message: str) -> None:
    whole = {"apiVersion": API_VERSION, **answer} if isinstance(answer, dict) else answer
    (plugin.folder / "answer").write_text(json.dumps(whole))
    with pytest.raises(KubeconfigError, match=rf"login command '.*plugin.py get-token' {message}"):
        await plugin.connection().credentials()


async def test_a_command_that_fails_is_quoted(plugin: Plugin) -> None:
    found = plugin.connection(command="/bin/sh", args=["-c", "echo your session is over >&2; exit 3"])
    with pytest.raises(KubeconfigError, match="failed with exit code 3: your session is over"):
        await found.credentials()


async def test_the_error_of_a_missing_command_has_the_install_hint(plugin: Plugin) -> None:
    found = plugin.connection(command="no-such-login", installHint="Install it from example.org")
    with pytest.raises(KubeconfigError, match=r"cannot be started: No such file(.|\n)*Install it from example.org"):
        await found.credentials()


async def test_cancelling_the_login_ends_its_command(plugin: Plugin) -> None:
    started = plugin.folder / "pid"
    script = f"echo $$ > {started}.new; mv {started}.new {started}; exec sleep 60"
    found = plugin.connection(command="/bin/sh", args=["-c", script])
    waiting = asyncio.create_task(found.credentials())
    while not started.exists():
        await asyncio.sleep(0.005)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
