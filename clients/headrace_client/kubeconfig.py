"""Logins from a kubeconfig, with the loader of the `kubernetes` package and fixes for what it lacks.

What `kubernetes.aio` 37 leaves out or gets wrong, and where that is fixed:

- the last file's current-context wins, not the first; an empty file, or a context without a user, crashes it:
  `open_kubeconfig` and `KubeconfigLogin`
- an exec login that fails is logged, and the call goes out without credentials; a certificate's expiry is ignored:
  `KubeconfigLogin.load_from_exec_plugin` (and `headrace_client.exec_login` for running the command)
- OIDC: base64url is decoded as base64, a new refresh token is never stored, and so on: `headrace_client.oidc`
- a token file, a certificate file or an id token is read once: `KubeconfigLogin.load` reads them again every minute
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.dateutil import parse_rfc3339
from kubernetes.aio.config.kube_config import ConfigNode, FileOrData, KubeConfigLoader, KubeConfigMerger

from headrace_client.errors import KubeconfigError
from headrace_client.exec_login import ExecLogin, exec_cluster
from headrace_client.oidc import expired, refresh

RELOAD_AFTER = timedelta(seconds=60)  # files of tokens and certificates are rotated long before they expire
NEVER = datetime.max.replace(tzinfo=UTC)
_AUTH_PROVIDERS = ("gcp", "oidc")


class KubeconfigLogin(KubeConfigLoader):  # type: ignore[misc]
    """One context of a kubeconfig. `namespace` is the context's; `where` names the files, for messages."""

    _user: Any

    def __init__(self, merger: Any, *, context: str, where: str) -> None:
        super().__init__(
            merger.config,
            active_context=context,
            config_base_path=None,
            # `save_changes` takes no argument, but the loader passes one.
            config_persister=lambda _: merger.save_changes(),
        )
        self._where = where
        self._renew_at = NEVER
        chosen = self.current_context["context"]
        self.namespace = str(chosen.get("namespace") or "default")
        if self._user is None:
            if chosen.get("user"):
                raise KubeconfigError(f"{where}: no user {chosen['user']!r}, which the context {context!r} names")
            self._user = ConfigNode("user", {}, self._cluster.path)
        if not self._cluster.safe_get("server"):
            raise KubeconfigError(f"{where}: the cluster {chosen.get('cluster')!r} has no server")
        if self.provider is not None and self.provider not in _AUTH_PROVIDERS:
            raise KubeconfigError(
                f"{where}: the user signs in with the auth-provider {self.provider!r}, which kubectl dropped too; let"
                " the cloud's command line tool write the kubeconfig again: it will use an exec plugin"
            )

    async def load(self, configuration: Any, now: datetime) -> datetime:
        """Sign in and fill `configuration`. Returns when to do so again. Raises `KubeconfigError`."""
        for old in ("token", "cert_file", "key_file"):
            self.__dict__.pop(old, None)
        self._renew_at = now + RELOAD_AFTER
        try:
            await self.load_and_set(configuration)
        except (ConfigException, OSError, ValueError) as error:
            raise KubeconfigError(f"{self._where}: cannot sign in: {error}") from error
        return self._renew_at

    async def load_from_exec_plugin(self) -> bool:
        """Run the user's command. Unlike the package's method it raises errors and heeds a certificate's expiry."""
        entry = self._user["exec"]
        folder = Path(self._get_base_path(self._user.path))
        cluster = exec_cluster(self._cluster.value, Path(self._get_base_path(self._cluster.path)))
        status = await ExecLogin(entry, folder=folder, cluster=cluster).run()
        expiry = status.get("expirationTimestamp")
        self._renew_at = parse_rfc3339(expiry) if expiry else NEVER
        if status.get("token"):
            self.token = f"Bearer {status['token']}"
        if status.get("clientCertificateData"):
            self.cert_file = _as_file(status, "clientCertificateData")
            self.key_file = _as_file(status, "clientKeyData")
        return True

    async def _load_oid_token(self) -> None:
        config = self._user["auth-provider"]["config"]
        token = config.safe_get("id-token")
        if not token or expired(token):
            config.value.update(await refresh(config.value, Path(self._get_base_path(self._user.path))))
            self._config_persister(self._config.value)
        self.token = f"Bearer {config['id-token']}"


def _as_file(status: Mapping[str, Any], name: str) -> str:
    return str(FileOrData(status, None, data_key_name=name, base64_file_content=False).as_file())


def open_kubeconfig(paths: Sequence[Path], *, context: str | None = None) -> KubeconfigLogin:
    """The login of a context; the first file that has an entry wins, as with kubectl. Raises `KubeconfigError`."""
    where = ", ".join(str(path) for path in paths)
    documents = _documents(paths)
    name = context or next((doc["current-context"] for doc in documents.values() if doc.get("current-context")), None)
    if not name:
        raise KubeconfigError(f"{where}: no current-context; name one with --context")
    known = [str(item.get("name")) for doc in documents.values() for item in doc.get("contexts") or []]
    if name not in known:
        raise KubeconfigError(f"{where}: no context {name!r}; there are: {', '.join(known) or 'none'}")
    try:
        return KubeconfigLogin(KubeConfigMerger(os.pathsep.join(documents)), context=name, where=where)
    except ConfigException as error:
        raise KubeconfigError(f"{where}: {error}") from error


def _documents(paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """What the files hold, without those that are missing or empty."""
    found: dict[str, Mapping[str, Any]] = {}
    existing = [path for path in paths if path.exists()]
    for path in existing:
        try:
            document = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise KubeconfigError(f"cannot read the kubeconfig {path}: {error}") from error
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise KubeconfigError(f"{path} is not a kubeconfig")
        found[str(path)] = document
    if not existing:
        looked = ", ".join(str(path) for path in paths)
        raise KubeconfigError(
            f"no cluster: this is not a pod, and there is no kubeconfig at {looked}; set KUBECONFIG, or start one with"
            " `headrace local up`"
        )
    return found
