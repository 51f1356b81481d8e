"""Where credentials come from, and when they are renewed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubeconfigs import kubeconfig

from headrace_client.connection import Credentials, auto_connection
from headrace_client.errors import KubeconfigError
from headrace_client.kubeconfig import RELOAD_AFTER

START = datetime(2026, 1, 1, tzinfo=UTC)


def account(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


async def credentials(**options: Any) -> Credentials:
    return await auto_connection(environ={}, **options).credentials()


def test_default_place_is_the_home_folder(tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube" / "config")
    assert auto_connection(environ={"HOME": str(tmp_path)}).namespace == "team"


def test_no_cluster_at_all_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=rf"{tmp_path}/.kube/config; set KUBECONFIG, or start one with"):
        auto_connection(environ={"HOME": str(tmp_path)})


async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    folder = account(tmp_path / "sa", token="t1\n", namespace="prod", **{"ca.crt": "a certificate"})
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = auto_connection(environ=env, account_dir=folder)
    first = await found.credentials()
    assert (first.configuration.host, found.namespace) == ("https://[fd00::1]:443", "prod")
    assert first.headers() == {"Authorization": "bearer t1"}


async def test_a_service_account_that_lacks_a_file_says_which_kind(tmp_path: Path) -> None:
    folder = account(tmp_path / "sa", token="t1")
    found = auto_connection(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, account_dir=folder)
    with pytest.raises(KubeconfigError, match=r"service account cannot be used: .*certification file"):
        await found.credentials()


def test_a_named_kubeconfig_wins_over_the_service_account(tmp_path: Path) -> None:
    folder = account(tmp_path / "sa", token="t1")
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    path = kubeconfig(tmp_path / "config")
    assert auto_connection(kubeconfig=path, environ=env, account_dir=folder).namespace == "team"


async def test_files_are_read_again_when_they_are_old_or_were_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    clock = [START]
    found = auto_connection(
        kubeconfig=kubeconfig(tmp_path / "config", user={"tokenFile": "token"}), environ={}, clock=lambda: clock[0]
    )
    assert (await found.credentials()).authorization == "Bearer one"
    path.write_text("two")
    clock[0] += RELOAD_AFTER - timedelta(seconds=1)
    assert (await found.credentials()).authorization == "Bearer one"
    clock[0] += timedelta(seconds=1)
    second = await found.credentials()
    assert second.authorization == "Bearer two"
    assert not await found.refused(second)
    path.write_text("three")
    assert await found.refused(await found.credentials())
    assert (await found.credentials()).authorization == "Bearer three"
    assert await found.refused(second), "the refused call used an old login, and there is a new one to try"
    path.unlink()
    with pytest.raises(KubeconfigError, match="cannot sign in"):
        await found.refused(await found.credentials())


async def test_a_certificate_replaced_under_its_name_is_another_login(tmp_path: Path) -> None:
    folder = account(tmp_path / "sa", token="t1", **{"ca.crt": "old"})
    clock = [START]
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    found = auto_connection(environ=env, account_dir=folder, clock=lambda: clock[0])
    before = await found.credentials()
    (folder / "ca.crt").write_text("new")
    clock[0] += RELOAD_AFTER
    after = await found.credentials()
    assert before.authorization == after.authorization
    assert before.tls != after.tls


@pytest.mark.parametrize(
    ("server", "uses_proxy"),
    [
        ("https://127.0.0.1:6443", False),
        ("https://[::1]:1", False),
        ("https://localhost", False),
        ("https://x.y", True),
    ],
)
async def test_the_environments_proxy_is_not_used_for_loopback(tmp_path: Path, server: str, uses_proxy: bool) -> None:
    found = await credentials(kubeconfig=kubeconfig(tmp_path / "config", cluster={"server": server}))
    assert found.configuration.client_session_kwargs == {"trust_env": uses_proxy}
