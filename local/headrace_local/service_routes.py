"""Addresses of Services, and the pods behind them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class SocketEndpoint(NamedTuple):
    """An IPv4 address and a TCP port."""

    host: str
    port: int


Routes = dict[SocketEndpoint, tuple[SocketEndpoint, ...]]


def routes(
    services: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], *, apiserver: SocketEndpoint
) -> Routes:
    """ClusterIP and port of each Service -> the ready pods' addresses and target ports, in the order of their names.

    A Service without a ready pod gets an empty tuple. Left out are headless and external Services, those without a
    selector, and ports other than TCP. `default/kubernetes` leads to the API server.
    """
    by_namespace: dict[str, list[Mapping[str, Any]]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        by_namespace.setdefault(pod["metadata"]["namespace"], []).append(pod)
    found: Routes = {}
    for service in services:
        address = service["spec"].get("clusterIP")
        if not address or address == "None" or ":" in address:
            continue
        candidates = by_namespace.get(service["metadata"]["namespace"], [])
        for port in service["spec"].get("ports", ()):
            if port.get("protocol", "TCP") != "TCP":
                continue
            if _is_kubernetes(service):
                found[SocketEndpoint(address, port["port"])] = (apiserver,)
            elif service["spec"].get("selector"):
                found[SocketEndpoint(address, port["port"])] = tuple(_backends(service, port, candidates))
    return found


def _is_kubernetes(service: Mapping[str, Any]) -> bool:
    return (service["metadata"]["namespace"], service["metadata"]["name"]) == ("default", "kubernetes")


def _backends(
    service: Mapping[str, Any], port: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]
) -> Iterable[SocketEndpoint]:
    spec = service["spec"]
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if any(labels.get(key) != value for key, value in spec["selector"].items()):
            continue
        if not _takes_traffic(pod, not_ready_too=spec.get("publishNotReadyAddresses", False)):
            continue
        number = _target_port(port, pod)
        if number is not None:
            yield SocketEndpoint(pod["status"]["podIP"], number)


def _takes_traffic(pod: Mapping[str, Any], *, not_ready_too: bool) -> bool:
    status = pod.get("status", {})
    if not status.get("podIP") or status.get("phase") in {"Succeeded", "Failed"}:
        return False
    if not_ready_too:
        return True
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", ()))
    return ready and "deletionTimestamp" not in pod["metadata"]


def _target_port(port: Mapping[str, Any], pod: Mapping[str, Any]) -> int | None:
    """The port's number in this pod; None if the pod has no port of that name."""
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    containers = (*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ()))
    for container in containers:
        for offered in container.get("ports", ()):
            if offered.get("name") == target and offered.get("protocol", "TCP") == "TCP":
                return int(offered["containerPort"])
    return None
