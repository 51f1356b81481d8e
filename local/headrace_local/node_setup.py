"""Roles of our own parts, the node's label, and the wait until the node is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_local.errors import LocalError
from headrace_local.layout import Slot
from headrace_local.pki import SERVICE_PROXY_USER, Pki
from headrace_local.probe import get_json, tls
from headrace_local.processes import log_tail
from headrace_local.progress import ProgressStep
from headrace_local.prometheus import rbac, user_role

GPU = "nvidia.com/gpu"
PRETEND_LABEL = "headrace.dev/pretend-gpus"
FIELD_MANAGER = "headrace-local"
NODE_SECONDS = 120
POLL_SECONDS = 0.2


def roles() -> list[dict[str, Any]]:
    """Roles of Prometheus and the Service proxy: each may read only what it works on."""
    rules = [{"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["get", "list", "watch"]}]
    return [*rbac(), *user_role(SERVICE_PROXY_USER, rules)]


def grant_roles(slot: Slot) -> None:
    """Apply the roles; LocalError if the API server refuses them."""
    apply(slot, roles())


def label_node(slot: Slot, *, gpus: int) -> None:
    """Label the node's GPUs as pretend ones, so that nobody takes its figures for those of a GPU."""
    metadata = {"name": slot.node_name, "labels": {PRETEND_LABEL: "true"}}
    if gpus:
        apply(slot, [{"apiVersion": "v1", "kind": "Node", "metadata": metadata}])


def wait_for_node(slot: Slot, pki: Pki, *, gpus: int, step: ProgressStep) -> None:
    """Wait until the node is Ready, offers the GPUs, and admits pods; LocalError after NODE_SECONDS."""
    context = tls(pki, pki.admin)
    node = f"{slot.apiserver_url}/api/v1/nodes/{slot.node_name}"
    # No pod is admitted before the controller manager has created its service account.
    account = f"{slot.apiserver_url}/api/v1/namespaces/default/serviceaccounts/default"
    deadline = time.monotonic() + NODE_SECONDS
    while missing := lacks(get_json(node, context), gpus, has_account=get_json(account, context) is not None):
        step.detail(missing)
        if time.monotonic() > deadline:
            log = slot.log_file("kubelet")
            raise LocalError(
                f"The node was not ready within {NODE_SECONDS} s: {missing}.",
                why=f"The end of the kubelet's log, {log}:",
                detail=log_tail(log),
                todo=f"The logs of kubelet, runtime and controller manager in {slot.logs_dir} say what is missing.",
            )
        time.sleep(POLL_SECONDS)
    step.detail("")


def lacks(node: dict[str, Any] | None, gpus: int, *, has_account: bool) -> str:
    """Why the cluster can't run a pod yet, as a phrase for people; empty if it can (pure)."""
    if node is None:
        return "the kubelet has not registered it yet"
    status = node.get("status", {})
    for condition in status.get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "not Ready")
    if not any(condition["type"] == "Ready" for condition in status.get("conditions", [])):
        return "it has no Ready condition yet"
    offered = int(status.get("allocatable", {}).get(GPU, "0"))
    if offered != gpus:
        return f"it offers {offered} of {gpus} {GPU}"
    return "" if has_account else "the namespace default has no service account yet"


def apply(slot: Slot, bodies: Sequence[dict[str, Any]]) -> None:
    """Apply the objects as the slot's administrator; LocalError if refused. Starts an event loop."""

    async def apply_all() -> None:
        async with Kube.auto(kubeconfig=slot.kubeconfig) as kube:
            for body in bodies:
                await kube.apply(body, field_manager=FIELD_MANAGER)

    try:
        asyncio.run(apply_all())
    except KubeError as error:
        raise LocalError(
            f"The API server of slot {slot.number} refused an object that the cluster needs.",
            why=str(error),
            todo=f"Its log is {slot.log_file('kube-apiserver')}.",
        ) from error
