"""How kubeconfigs are read, and the errors of those that are wrong."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeconfigs import kubeconfig

from headrace_client.connection import Credentials, auto_connection
from headrace_client.errors import KubeconfigError


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
def test_a_context_that_names_a_missing_cluster_or_user(tmp_path: Path, section: str, message: str) -> None:
    path = kubeconfig(tmp_path / "config")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), section: []}))
    with pytest.raises(KubeconfigError, match=message):
        auto_connection(kubeconfig=path, environ={})


def test_a_file_that_is_not_a_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("- just\n- a list\n")
    with pytest.raises(KubeconfigError, match="is not a kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})
    (tmp_path / "config").write_text("a: [")
    with pytest.raises(KubeconfigError, match="cannot read the kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})
