"""How to reach an API server and sign in to it, from the pod's service account or from a kubeconfig."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from headrace_client.errors import KubeconfigError
from headrace_client.kubeconfig import RELOAD_AFTER, open_kubeconfig

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class LoginSource(Protocol):
    """Where credentials come from. `namespace` is the default namespace of the context or pod."""

    namespace: str

    async def load(self, configuration: Any, now: datetime) -> datetime:
        """Fill a `kubernetes.aio` Configuration. Returns when to load again. Raises `KubeconfigError`."""


class ServiceAccountLogin(InClusterConfigLoader):  # type: ignore[misc]
    """The login of a pod. The kubelet replaces token and CA long before they expire."""

    def __init__(self, env: Mapping[str, str], account_dir: Path) -> None:
        super().__init__(
            token_filename=str(account_dir / "token"),
            cert_filename=str(account_dir / "ca.crt"),
            try_refresh_token=False,  # its hook refreshes the token, but not the CA, nor after a 401; `Connection` does
            environ={"KUBERNETES_SERVICE_PORT": "443", **env},
        )
        namespace = account_dir / "namespace"
        self.namespace = namespace.read_text().strip() if namespace.exists() else "default"

    async def load(self, configuration: Any, now: datetime) -> datetime:
        """Read the token and CA files; due again after a minute."""
        try:
            self.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            raise KubeconfigError(f"the pod's service account cannot be used: {error}") from error
        return now + RELOAD_AFTER


@dataclass(frozen=True, slots=True)
class Credentials:
    """One login. `authorization` is the header's value, or empty; `tls` is a digest of certificates and key."""

    configuration: Any
    authorization: str
    tls: bytes

    def same_as(self, other: Credentials) -> bool:
        """Whether the server would see no difference between the two."""
        return (self.authorization, self.tls) == (other.authorization, other.tls)

    def headers(self) -> dict[str, str]:
        """Authentication headers of one request."""
        return {"Authorization": self.authorization} if self.authorization else {}

    def ssl_context(self) -> ssl.SSLContext:
        """A new TLS context. Raises `KubeconfigError`."""
        with self._certificates():
            context: ssl.SSLContext = RESTClientObject(self.configuration).ssl_context
        return context

    def reload(self, context: ssl.SSLContext) -> None:
        """Load these certificates into a context that is in use; connections opened from now on use them."""
        with self._certificates():
            if self.configuration.ssl_ca_cert:
                context.load_verify_locations(self.configuration.ssl_ca_cert)
            if self.configuration.cert_file:
                context.load_cert_chain(self.configuration.cert_file, self.configuration.key_file)

    @contextmanager
    def _certificates(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise KubeconfigError(
                f"certificate authority, client certificate or key for {self.configuration.host} cannot be used:"
                f" {error}"
            ) from error


class Connection:
    """A server's address and credentials, renewed when due or refused. Several clients can share one."""

    def __init__(self, source: LoginSource, *, clock: Callable[[], datetime] | None = None) -> None:
        self.namespace = source.namespace
        self._source = source
        self._clock = clock or _now
        self._current: Credentials | None = None
        self._renew_at = datetime.min.replace(tzinfo=UTC)
        self._lock = asyncio.Lock()

    async def credentials(self) -> Credentials:
        """The current credentials, renewed if due. Raises `KubeconfigError`."""
        if self._current is not None and self._clock() < self._renew_at:
            return self._current
        async with self._lock:
            if self._current is None or self._clock() >= self._renew_at:
                await self._load()
            return self._given()

    async def refused(self, used: Credentials) -> bool:
        """Note a 401; True if there are other credentials to try than those `used`. Raises `KubeconfigError`."""
        async with self._lock:
            if self._current is used:
                await self._load()
            return not self._given().same_as(used)

    async def _load(self) -> None:
        configuration = Configuration()
        # Many clusters' certificates fail Python 3.13's strict mode; kubectl is not as strict.
        configuration.disable_strict_ssl_verification = True
        self._renew_at = await self._source.load(configuration, self._clock())
        # The package would send calls to 127.0.0.1 through the environment's proxy; Go programs never do.
        configuration.client_session_kwargs = {"trust_env": not _is_loopback(configuration.host)}
        # The package keeps the newline at the end of a token file, which a header must not contain.
        authorization = (await configuration.get_api_key_with_prefix("BearerToken") or "").strip()
        self._current = Credentials(configuration, authorization, _digest(configuration))

    def _given(self) -> Credentials:
        if self._current is None:
            raise KubeconfigError("the login gave no credentials")
        return self._current


def auto_connection(
    context: str | None = None,
    kubeconfig: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    account_dir: Path = SERVICE_ACCOUNT_DIR,
    clock: Callable[[], datetime] | None = None,
) -> Connection:
    """A named context or kubeconfig if given; else the pod's service account; else the default kubeconfig.

    Nothing is sent or run until the credentials are needed. `clock` returns aware datetimes.
    Raises `KubeconfigError`.
    """
    env = os.environ if environ is None else environ
    if context is None and kubeconfig is None and env.get("KUBERNETES_SERVICE_HOST"):
        token = account_dir / "token"
        if token.exists():
            return Connection(ServiceAccountLogin(env, account_dir), clock=clock)
    return Connection(open_kubeconfig(_kubeconfig_paths(kubeconfig, env), context=context), clock=clock)


def _kubeconfig_paths(kubeconfig: str | Path | None, env: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        return [Path(kubeconfig)]
    listed = [Path(part) for part in env.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"]


def _digest(configuration: Any) -> bytes:
    """Changes with the content of CA, certificate and key: they may be replaced under the same name."""
    digest = hashlib.sha256()
    for path in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        try:
            content = Path(path).read_bytes() if path else b""
        except OSError as error:
            raise KubeconfigError(f"cannot read {path}: {error.strerror}") from error
        digest.update(len(content).to_bytes(8) + content)
    return digest.digest()


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  (an I/O module: credentials expire by wall time)
