"""Extracts the few facts that decisions use from raw objects of the API server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace_api import names

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How a container last ended."""

    code: int
    reason: str  # OOMKilled, Error, Completed, ...
    message: str  # last line of the log, by terminationMessagePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """Facts about one pod and its engine or tuner container."""

    name: str
    uid: str
    ip: str = ""
    revision: str = ""
    track: str = ""
    created: str = ""
    phase: str = "Pending"
    ready: bool = False
    terminating: bool = False
    restarts: int = 0
    running: bool = False
    waiting: str = ""  # why the container waits: ImagePullBackOff, ...
    waiting_message: str = ""
    exited: LastExit | None = None
    unschedulable: str = ""  # the scheduler's message

    @property
    def identity(self) -> tuple[str, int]:
        """Pod uid and restart count, which differ for every process of the pod."""
        return self.uid, self.restarts

    @property
    def finished(self) -> bool:
        """Whether the pod will never run again (evicted, or its Job ended)."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """Facts about a Deployment, from its controller."""

    name: str
    revision: str
    current: bool  # the controller has seen the newest spec
    replicas: int
    deadline_exceeded: str = ""  # its message
    failure: str = ""  # why it cannot make pods (quota, admission)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """Facts about a Job, from its controller."""

    name: str
    uid: str
    active: int = 0
    succeeded: bool = False
    failed: str = ""  # its message, once it has given up
    ended_at: str = ""
    terminating: bool = False


def pod_view(body: Raw, container: str = names.ENGINE_CONTAINER) -> PodView:
    """Facts of a pod."""
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    ours = _container_status(status, container)
    state = ours.get("state") or {}
    waiting = state.get("waiting") or {}
    conditions = _conditions(status)
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        ip=status.get("podIP") or "",
        revision=labels.get(names.REVISION_LABEL, ""),
        track=labels.get(names.TRACK_LABEL, ""),
        created=metadata.get("creationTimestamp") or "",
        phase=status.get("phase") or "Pending",
        ready=_is_true(conditions.get("Ready")),
        terminating=bool(metadata.get("deletionTimestamp")),
        restarts=int(ours.get("restartCount") or 0),
        running="running" in state,
        waiting=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        exited=_exit(state) or _exit(ours.get("lastState") or {}),
        unschedulable=_unschedulable(conditions.get("PodScheduled")),
    )


def deployment_view(body: Raw) -> DeploymentView:
    """Facts of a Deployment."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    conditions = _conditions(status)
    progressing, failure = conditions.get("Progressing") or {}, conditions.get("ReplicaFailure")
    late = progressing.get("reason") == "ProgressDeadlineExceeded"
    return DeploymentView(
        name=metadata["name"],
        revision=labels.get(names.REVISION_LABEL, ""),
        current=int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0),
        replicas=int(status.get("replicas") or 0),
        deadline_exceeded=(progressing.get("message") or "no progress") if late else "",
        failure=(failure or {}).get("message") or "" if _is_true(failure) else "",
    )


def job_view(body: Raw) -> JobView:
    """Facts of a Job."""
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = _conditions(status)
    failed = conditions.get("Failed")
    return JobView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        active=int(status.get("active") or 0),
        succeeded=_is_true(conditions.get("Complete")),
        failed=((failed or {}).get("message") or "the Job failed") if _is_true(failed) else "",
        ended_at=status.get("completionTime") or "",
        terminating=bool(metadata.get("deletionTimestamp")),
    )


def cluster_ip(body: Raw | None) -> str:
    """Address of a Service, or an empty string."""
    address = ((body or {}).get("spec") or {}).get("clusterIP") or ""
    return "" if address == "None" else address


def by_age(pods: Iterable[PodView]) -> list[PodView]:
    """Oldest first, names break ties: the same pods always come in the same order."""
    return sorted(pods, key=lambda pod: (pod.created, pod.name))


def timestamp(text: str) -> datetime:
    """Time of a Kubernetes timestamp."""
    return datetime.fromisoformat(text)


def _container_status(status: Raw, name: str) -> Raw:
    found = (item for item in status.get("containerStatuses") or () if item.get("name") == name)
    return next(found, {})


def _conditions(status: Raw) -> dict[str, Raw]:
    return {item["type"]: item for item in status.get("conditions") or ()}


def _is_true(condition: Raw | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _exit(state: Raw) -> LastExit | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return LastExit(
        code=int(ended.get("exitCode") or 0),
        reason=ended.get("reason") or "",
        message=(ended.get("message") or "").strip(),
    )


def _unschedulable(condition: Raw | None) -> str:
    if condition is None or condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return ""
    return condition.get("message") or "no node fits"
