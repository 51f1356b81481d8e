"""Run the login command of a kubeconfig (EKS, GKE, AKS, OIDC helpers) and read its ExecCredential.

The provider of the `kubernetes` package hides what the command writes to the terminal, so nobody sees "open this page
and enter this code"; it hangs if the command writes much to stderr; it knows neither `provideClusterInfo` nor
commands relative to the kubeconfig. Only its reading of the kubeconfig's entry is used here, not its `run`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes.aio.config.exec_provider import ExecProvider

from headrace_client.errors import KubeconfigError

_EXTENSION = "client.authentication.k8s.io/exec"
_PASSED_ON = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "certificate-authority-data")


def exec_cluster(cluster: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`spec.cluster` of an ExecCredential; paths in the kubeconfig's entry are relative to `folder`."""
    given = {name: cluster[name] for name in _PASSED_ON if cluster.get(name)}
    authority = cluster.get("certificate-authority")
    if authority and "certificate-authority-data" not in given:
        given["certificate-authority-data"] = base64.b64encode((folder / authority).read_bytes()).decode()
    for item in cluster.get("extensions") or []:
        if item.get("name") == _EXTENSION:
            given["config"] = item.get("extension")
    return given


class ExecLogin(ExecProvider):  # type: ignore[misc]
    """Runs the login command once. `entry` is the `exec` entry of a kubeconfig's user."""

    def __init__(self, entry: Any, *, folder: Path, cluster: Mapping[str, Any]) -> None:
        super().__init__(entry)
        if os.sep in self.args[0]:
            self.args[0] = str(folder / self.args[0])
        spec: dict[str, Any] = {"interactive": sys.stdin is not None and sys.stdin.isatty()}
        if entry.safe_get("interactiveMode") == "Never":
            spec["interactive"] = False
        if entry.safe_get("provideClusterInfo"):
            spec["cluster"] = dict(cluster)
        self._hint = str(entry.safe_get("installHint") or "").strip()
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        self.env["KUBERNETES_EXEC_INFO"] = json.dumps(info)

    async def run(self) -> Mapping[str, Any]:
        """Run the command. Returns the `status` of its ExecCredential. Raises `KubeconfigError`."""
        # On a terminal a person reads the command's prompts as they come; otherwise they go into the error.
        stderr = None if sys.stderr.isatty() else asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.args, env=self.env, stdout=asyncio.subprocess.PIPE, stderr=stderr
            )
        except OSError as error:
            hint = f"\n{self._hint}" if self._hint else "; install it, or choose another --context"
            raise self._failed(f"cannot be started: {error.strerror}{hint}") from error
        try:
            output, errors = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode:
            why = (errors or b"").decode(errors="replace").strip()[-2000:]
            raise self._failed(f"failed with exit code {process.returncode}{': ' if why else ''}{why}")
        return self._status(output)

    def _status(self, output: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(output)
            version, status = answer["apiVersion"], answer["status"]
            usable = bool(status.get("token") or (status.get("clientCertificateData") and status.get("clientKeyData")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._failed("wrote no ExecCredential with a status to its standard output") from error
        if version != self.api_version:
            raise self._failed(
                f"answered in {version}, but the kubeconfig asks for {self.api_version}: update one of the two"
            )
        if not usable:
            raise self._failed("gave neither a token nor a client certificate with its key")
        checked: Mapping[str, Any] = status
        return checked

    def _failed(self, how: str) -> KubeconfigError:
        return KubeconfigError(f"the kubeconfig's login command {' '.join(self.args)!r} {how}")
