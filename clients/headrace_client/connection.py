"""How to reach an API server: address, TLS, credentials; from the pod's service account or from a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace_client.errors import KubeconfigError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE = 60.0  # seconds; the kubelet rotates a token long before it expires


@dataclass(slots=True)
class FileToken:
    """A bearer token in a file that is replaced now and then; read again after `TOKEN_MAX_AGE` or on demand."""

    path: Path
    _token: str = ""
    _read_at: float | None = None

    def get(self, now: float) -> str:
        """The token; `now` in seconds on any steady clock."""
        if self._read_at is None or now - self._read_at > TOKEN_MAX_AGE:
            try:
                self._token = self.path.read_text().strip()
            except OSError as error:
                raise KubeconfigError(f"cannot read the token {self.path}: {error.strerror}") from error
            self._read_at = now
        return self._token

    def forget(self) -> None:
        """Read the file again at the next call: the server refused the token."""
        self._read_at = None


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and credentials. `namespace` is the default one of the context or pod.

    `impersonate` holds headers such as Impersonate-User, to try out another's rights.
    """

    server: str
    ssl: ssl.SSLContext | None = None
    token: str = ""
    token_file: FileToken | None = None
    namespace: str = "default"
    tls_server_name: str | None = None
    impersonate: Mapping[str, str] = field(default_factory=dict)

    def headers(self, now: float) -> dict[str, str]:
        """Authentication headers of one request."""
        token = self.token_file.get(now) if self.token_file else self.token
        return {**({"Authorization": f"Bearer {token}"} if token else {}), **self.impersonate}

    def refused(self) -> bool:
        """Note a 401; True if another try may carry another token."""
        if self.token_file is None:
            return False
        self.token_file.forget()
        return True


def auto_connection(
    context: str | None = None,
    kubeconfig: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> Connection:
    """A named context or kubeconfig if given; else the pod's service account; else the default kubeconfig."""
    env = os.environ if environ is None else environ
    if context is None and kubeconfig is None and env.get("KUBERNETES_SERVICE_HOST"):
        token = account_dir / "token"
        if token.exists():
            return in_cluster(env, account_dir=account_dir)
    return from_kubeconfig(_kubeconfig_paths(kubeconfig, env), context=context)


def in_cluster(env: Mapping[str, str], *, account_dir: Path = SERVICE_ACCOUNT_DIR) -> Connection:
    """Connection of a pod."""
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = account_dir / "namespace"
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ssl=_ssl_context(ca_file=str(account_dir / "ca.crt")),
        token_file=FileToken(account_dir / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def _kubeconfig_paths(kubeconfig: str | Path | None, env: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        return [Path(kubeconfig)]
    listed = [Path(part) for part in env.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"]


@dataclass(frozen=True, slots=True)
class _NamedEntry:
    """One named entry of a kubeconfig, and the folder that its relative paths start from."""

    data: Mapping[str, Any]
    folder: Path


def from_kubeconfig(paths: list[Path], *, context: str | None = None) -> Connection:
    """Connection of a context; the first file that has an entry wins, as with kubectl."""
    files = _read_files(paths)
    where = ", ".join(str(path) for path in paths)
    name = context or next((doc["current-context"] for doc, _ in files if doc.get("current-context")), None)
    if not name:
        raise KubeconfigError(f"{where}: no current-context; name one with --context")
    chosen = _entry(files, "contexts", name=name, where=where)
    cluster = _entry(files, "clusters", name=str(chosen.data.get("cluster")), where=where)
    user = _entry(files, "users", name=str(chosen.data.get("user")), where=where)
    return _connection(cluster, user, namespace=str(chosen.data.get("namespace") or "default"))


def _read_files(paths: list[Path]) -> list[tuple[Mapping[str, Any], Path]]:
    found = []
    for path in paths:
        if not path.exists():
            continue
        try:
            document = yaml.safe_load(path.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise KubeconfigError(f"cannot read the kubeconfig {path}: {error}") from error
        if not isinstance(document, Mapping):
            raise KubeconfigError(f"{path} is not a kubeconfig")
        found.append((document, path.parent))
    if not found:
        looked = ", ".join(str(path) for path in paths)
        raise KubeconfigError(
            f"no cluster: this is not a pod, and there is no kubeconfig at {looked}; set KUBECONFIG, or start one with"
            " `headrace local up`"
        )
    return found


def _entry(files: list[tuple[Mapping[str, Any], Path]], section: str, *, name: str, where: str) -> _NamedEntry:
    singular = section.removesuffix("s")
    known = []
    for document, folder in files:
        for item in document.get(section) or []:
            known.append(str(item.get("name")))
            if item.get("name") == name:
                return _NamedEntry(item.get(singular) or {}, folder)
    raise KubeconfigError(f"{where}: no {singular} {name!r}; there are: {', '.join(known) or 'none'}")


def _connection(cluster: _NamedEntry, user: _NamedEntry, *, namespace: str) -> Connection:
    for plugin in ("exec", "auth-provider"):
        if plugin in user.data:
            raise KubeconfigError(
                f"the kubeconfig's user signs in by {plugin}, which is not supported: use a context with a token or a"
                " client certificate, e.g. of a service account (kubectl create token)"
            )
    token_file = user.data.get("tokenFile")
    server = str(cluster.data.get("server", "")).rstrip("/")
    return Connection(
        server=server,
        ssl=_kubeconfig_ssl(cluster, user) if server.startswith("https://") else None,
        token=str(user.data.get("token") or ""),
        token_file=FileToken(user.folder / token_file) if token_file else None,
        namespace=namespace,
        tls_server_name=cluster.data.get("tls-server-name"),
    )


def _kubeconfig_ssl(cluster: _NamedEntry, user: _NamedEntry) -> ssl.SSLContext:
    certificate, key = _blob(user, "client-certificate"), _blob(user, "client-key")
    authority = _blob(cluster, "certificate-authority")
    context = _ssl_context(
        ca_data=authority.decode() if authority else None,
        insecure=bool(cluster.data.get("insecure-skip-tls-verify")),
    )
    if certificate and key:
        _load_pair(context, certificate, key)
    return context


def _blob(entry: _NamedEntry, name: str) -> bytes | None:
    """Inline data (base64) or the content of the file that an entry names."""
    try:
        if inline := entry.data.get(f"{name}-data"):
            return base64.b64decode(inline)
        path = entry.data.get(name)
        return (entry.folder / path).read_bytes() if path else None
    except (OSError, ValueError) as error:
        raise KubeconfigError(f"cannot read {name} of the kubeconfig: {error}") from error


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Python's ssl loads a pair only from files.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate + b"\n" + key)
        _checked(lambda: context.load_cert_chain(path), "client certificate and key")


def _ssl_context(*, ca_file: str | None = None, ca_data: str | None = None, insecure: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file or ca_data:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _checked(lambda: context.load_verify_locations(cafile=ca_file, cadata=ca_data), "certificate authority")
    return context


def _checked(load: Callable[[], None], what: str) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise KubeconfigError(f"the {what} cannot be used: {error}") from error
