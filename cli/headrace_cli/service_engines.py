"""Finds the trace of a request by asking each engine of an InferenceService in turn."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_api import names
from headrace_client.engine import EngineAdmin, admin_url
from headrace_client.errors import EngineCallError, EngineUnavailable, KubeError
from headrace_client.kube import Kube
from headrace_client.resources import PODS, SECRETS

Told = Mapping[str, Any]
SECONDS = 10.0  # for one pod's answer; an unroutable address never answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """An InferenceService. `context` and `namespace` None: those of the kubeconfig."""

    service: str
    context: str | None = None
    namespace: str | None = None


async def ask_service(where: Where, request: str) -> Told:
    """The report on `request` from the pod that served it. Raises `KubeError`, `EngineCallError` if no pod has it."""
    async with Kube.auto(where.context) as kube:
        namespace = where.namespace or kube.connection.namespace
        label = names.selector_string({names.SERVICE_LABEL: where.service})
        pods = await kube.list(PODS, namespace, label)
        running = [pod for pod in pods if pod.get("status", {}).get("podIP")]
        if not running:
            raise KubeError(
                f"InferenceService {namespace}/{where.service} has no running pod ({len(pods)} in all); "
                "headrace status -A lists all services"
            )
        tokens = {name: await _token(kube, name, namespace) for name in {_secret(pod) for pod in running}}
    answers = await asyncio.gather(*(_ask(pod, tokens[_secret(pod)], request) for pod in running))
    refusals = []
    for pod, answer in zip(running, answers, strict=True):
        if not isinstance(answer, EngineCallError):
            return answer
        refusals.append(_refusal(pod, namespace, answer))
    raise EngineCallError("\n".join(refusals))


def _secret(pod: Mapping[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    run = labels.get(names.TUNING_RUN_LABEL)
    return names.admin_secret(labels[names.SERVICE_LABEL]) if run is None else names.trial_admin_secret(run)


async def _token(kube: Kube, name: str, namespace: str) -> str:
    secret = await kube.get(SECRETS, name, namespace)
    if secret is None:
        raise KubeError(f"Secret {namespace}/{name}, which holds the token of the admin port, does not exist")
    return base64.b64decode(secret["data"][names.ADMIN_TOKEN_KEY]).decode()


async def _ask(pod: Mapping[str, Any], token: str, request: str) -> Told | EngineCallError:
    try:
        async with EngineAdmin(admin_url(pod["status"]["podIP"]), token, timeout=SECONDS) as admin:
            return await admin.explain(request)
    except EngineCallError as error:
        return error


def _refusal(pod: Mapping[str, Any], namespace: str, error: EngineCallError) -> str:
    name, port = pod["metadata"]["name"], names.ADMIN_PORT
    said = f"pod {name}: {error}"
    if not isinstance(error, EngineUnavailable):
        return said
    return (
        f"{said}\n  If pods cannot be reached from here: kubectl port-forward -n {namespace} pod/{name} {port}, and "
        f"--admin-url http://127.0.0.1:{port} with the token of Secret {_secret(pod)} in ${names.ADMIN_TOKEN_ENV}"
    )
