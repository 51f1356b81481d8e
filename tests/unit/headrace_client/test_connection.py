"""Where credentials come from."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_client.connection import TOKEN_MAX_AGE, FileToken, auto_connection
from headrace_client.errors import KubeconfigError


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


def test_kubeconfig_with_a_token(tmp_path: Path) -> None:
    found = auto_connection(kubeconfig=kubeconfig(tmp_path / "config"), environ={})
    assert (found.server, found.namespace) == ("https://127.0.0.1:1", "team")
    assert found.headers(0) == {"Authorization": "Bearer secret"}
    assert found.ssl is not None
    assert not found.ssl.check_hostname


def test_token_file_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("from file\n")
    found = auto_connection(kubeconfig=kubeconfig(tmp_path / "config", user={"tokenFile": "tok"}), environ={})
    assert found.headers(0) == {"Authorization": "Bearer from file"}


def test_plain_http_needs_no_tls(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", cluster={"server": "http://127.0.0.1:8080/"})
    assert auto_connection(kubeconfig=path, environ={}).ssl is None


def test_several_files_are_merged_first_wins(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "a", current=None)
    second = kubeconfig(tmp_path / "b", name="two", current="two", cluster={"server": "http://other"})
    env = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"}
    assert auto_connection(environ=env).server == "https://127.0.0.1:1"  # cluster c of the first file
    assert auto_connection("one", environ=env).namespace == "team"


def test_default_place_is_the_home_folder(tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube" / "config")
    assert auto_connection(environ={"HOME": str(tmp_path)}).namespace == "team"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current": None}, "no current-context"),
        ({"current": "nope"}, "no context 'nope'; there are: one"),
        ({"user": {"exec": {"command": "aws"}}}, "signs in by exec, which is not supported"),
        ({"user": {"client-certificate": "gone.pem", "client-key": "gone.key"}}, "cannot read client-certificate"),
        (
            {"user": {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}},
            "certificate and key cannot be used",
        ),
        ({"cluster": {"server": "https://x", "certificate-authority-data": "AAAA"}}, "authority cannot be used"),
    ],
)
def test_problems_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        auto_connection(kubeconfig=kubeconfig(tmp_path / "config", **change), environ={})


def test_no_cluster_at_all_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=rf"{tmp_path}/.kube/config; set KUBECONFIG, or start one with"):
        auto_connection(environ={"HOME": str(tmp_path)})


def test_a_file_that_is_no_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("- just\n- a list\n")
    with pytest.raises(KubeconfigError, match="is not a kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})
    (tmp_path / "config").write_text("a: [")
    with pytest.raises(KubeconfigError, match="cannot read the kubeconfig"):
        auto_connection(kubeconfig=tmp_path / "config", environ={})


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    import ssl

    roots = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not roots:
        pytest.skip("this machine trusts no authority, so there is no certificate to load")
    pem = ssl.DER_cert_to_PEM_cert(roots[0])
    folder = account(tmp_path / "sa", token="t1\n", namespace="prod", **{"ca.crt": pem})
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = auto_connection(environ=env, account_dir=folder)
    assert (found.server, found.namespace) == ("https://10.0.0.1:443", "prod")
    assert found.headers(0) == {"Authorization": "Bearer t1"}


def test_a_named_kubeconfig_wins_over_the_service_account(tmp_path: Path) -> None:
    folder = account(tmp_path / "sa", token="t1")
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    path = kubeconfig(tmp_path / "config")
    assert auto_connection(kubeconfig=path, environ=env, account_dir=folder).namespace == "team"


def test_a_token_is_read_again_when_it_is_old_or_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path)
    assert token.get(0) == "one"
    path.write_text("two")
    assert token.get(TOKEN_MAX_AGE) == "one"
    assert token.get(TOKEN_MAX_AGE + 1) == "two"
    path.write_text("three")
    token.forget()
    assert token.get(TOKEN_MAX_AGE + 2) == "three"
    path.unlink()
    token.forget()
    with pytest.raises(KubeconfigError, match="cannot read the token"):
        token.get(0)


def test_inline_data_is_base64(tmp_path: Path) -> None:
    cluster = {"server": "https://x", "certificate-authority-data": base64.b64encode(b"not pem").decode()}
    with pytest.raises(KubeconfigError, match="certificate authority cannot be used"):
        auto_connection(kubeconfig=kubeconfig(tmp_path / "config", cluster=cluster), environ={})
