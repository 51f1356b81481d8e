"""Where credentials come from, and when they are renewed."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_client.connection import Credentials, auto_connection
from headrace_client.errors import KubeconfigError
from headrace_client.kubeconfig import RELOAD_AFTER

START = datetime(2026, 1, 1, tzinfo=UTC)


def kubeconfig(
    path: Path, *, name: str = "one", user: Any = None, cluster: Any = None, current: str | None = "one"
) -> Path:
    cluster = cluster or {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    document = {
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def account(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


async def credentials(**options: Any) -> Credentials:
    return await auto_connection(environ={}, **options).credentials()


async def test_kubeconfig_with_a_token(tmp_path: Path) -> None:
    found = auto_connection(kubeconfig=kubeconfig(tmp_path / "config"), environ={})
    assert found.namespace == "team"
    first = await found.credentials()
    assert first.configuration.host == "https://127.0.0.1:1"
    assert first.headers() == {"Authorization": "Bearer secret"}
    assert not first.ssl_context().check_hostname


async def test_token_file_is_relative_to_the_kubeconfig_and_may_end_in_a_newline(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("from file\n")
    found = await credentials(kubeconfig=kubeconfig(tmp_path / "config", user={"tokenFile": "tok"}))
    assert found.headers() == {"Authorization": "Bearer from file"}


async def test_a_name_and_password_are_basic_authentication(tmp_path: Path) -> None:
    user = {"username": "a", "password": "b"}
    found = await credentials(kubeconfig=kubeconfig(tmp_path / "config", user=user))
    assert found.authorization == f"Basic {base64.b64encode(b'a:b').decode()}"


async def test_a_context_may_have_no_user(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config")
    document = yaml.safe_load(path.read_text())
    del document["contexts"][0]["context"]["user"]
    path.write_text(yaml.safe_dump(document))
    assert (await credentials(kubeconfig=path)).headers() == {}


async def test_several_files_are_merged_first_wins(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    first = kubeconfig(tmp_path / "a")
    second = kubeconfig(tmp_path / "b", name="two", current="two", cluster={"server": "http://other"})
    env = {"KUBECONFIG": f"{empty}:{first}:{tmp_path / 'missing'}:{second}"}
    found = auto_connection(environ=env)
    assert found.namespace == "team"
    two = await auto_connection("two", environ=env).credentials()
    assert two.configuration.host == "https://127.0.0.1:1"  # cluster c of the first file


def test_a_file_without_a_current_context_leaves_it_to_the_next(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "a", current=None, name="other")
    second = kubeconfig(tmp_path / "b", name="two", current="two")
    env = {"KUBECONFIG": f"{first}:{second}"}
    assert auto_connection(environ=env).namespace == "team"


def test_default_place_is_the_home_folder(tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube" / "config")
    assert auto_connection(environ={"HOME": str(tmp_path)}).namespace == "team"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current": None}, "no current-context"),
        ({"current": "nope"}, "no context 'nope'; there are: one"),
        ({"user": {"auth-provider": {"name": "azure"}}}, "auth-provider 'azure', which kubectl dropped"),
        ({"user": {"client-certificate": "gone.pem", "client-key": "gone.key"}}, "cannot sign in: .*gone.pem"),
        (
            {"user": {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}},
            "certificate or key for https://127.0.0.1:1 cannot be used",
        ),
        ({"cluster": {"server": "https://x", "certificate-authority-data": "AAAA"}}, "authority.*cannot be used"),
        ({"cluster": {"insecure-skip-tls-verify": True}}, "the cluster 'c' has no server"),
    ],
)
async def test_problems_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        (await credentials(kubeconfig=kubeconfig(tmp_path / "config", **change))).ssl_context()


@pytest.mark.parametrize(
    ("section", "message"),
    [("users", "no user 'u', which the context 'one' names"), ("clusters", "object with name c")],
)
def test_a_context_that_names_what_is_not_there(tmp_path: Path, section: str, message: str) -> None:
    path = kubeconfig(tmp_path / "config")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), section: []}))
    with pytest.raises(KubeconfigError, match=message):
        auto_connection(kubeconfig=path, environ={})


def test_no_cluster_at_all_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=rf"{tmp_path}/.kube/config; set KUBECONFIG, or start one with"):
        auto_connection(environ={"HOME": str(tmp_path)})


def test_a_file_that_is_not_a_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("- just\n- a list\n")
    with pytest.raises(KubeconfigError, match="is not a kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})
    (tmp_path / "config").write_text("a: [")
    with pytest.raises(KubeconfigError, match="cannot read the kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})


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
    assert await found.refused(second), "another call had used the old one: there is a new one to try"
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
async def test_a_proxy_of_the_environment_is_not_for_loopback(tmp_path: Path, server: str, uses_proxy: bool) -> None:
    found = await credentials(kubeconfig=kubeconfig(tmp_path / "config", cluster={"server": server}))
    assert found.configuration.client_session_kwargs == {"trust_env": uses_proxy}
