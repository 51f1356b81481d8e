"""Facts from raw objects of the API server, even where fields are missing or odd."""

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace_operator.cluster.observe import (
    LastExit,
    PodView,
    by_age,
    cluster_ip,
    deployment_view,
    job_view,
    pod_view,
    timestamp,
)

METADATA = {"name": "x", "uid": "u"}


def pod(container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    statuses = [] if container is None else [{"name": "engine", **container}]
    return {"metadata": METADATA, "status": {"containerStatuses": statuses, **status}}


def condition(type_: str, status: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": status, **more}]}


ENDED = {"exitCode": 2, "reason": "Error", "message": "first\nlast\n"}
EXIT = LastExit(code=2, reason="Error", message="first\nlast")


@pytest.mark.parametrize("status", [None, {}, {"conditions": None, "containerStatuses": None, "podIP": None}])
def test_a_pod_without_a_status_yet_is_pending(status: dict[str, Any] | None) -> None:
    assert pod_view({"metadata": METADATA, "status": status}) == PodView(name="x", uid="u")


PODS = {
    "ready": (pod(**condition("Ready", "True"), podIP="1.2.3.4"), {"ready": True, "ip": "1.2.3.4"}),
    "not ready": (pod(**condition("Ready", "False")), {"ready": False}),
    "unknown": (pod(**condition("Ready", "Unknown")), {"ready": False}),
    "running": (pod({"state": {"running": {}}, "restartCount": 2}), {"running": True, "restarts": 2}),
    "waits": (
        pod({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}),
        {"waiting": "ImagePullBackOff", "waiting_message": "no such image"},
    ),
    "waits without a message": (pod({"state": {"waiting": {}}}), {"waiting": "", "running": False}),
    "ended": (pod({"state": {"terminated": ENDED}}), {"exited": EXIT, "running": False}),
    "ended before": (pod({"state": {"running": {}}, "lastState": {"terminated": ENDED}}), {"exited": EXIT}),
    "ended twice": (
        pod({"state": {"terminated": ENDED}, "lastState": {"terminated": {"exitCode": 1}}}),
        {"exited": EXIT},
    ),
    "ended without a message": (
        pod({"state": {"terminated": {"exitCode": 137, "reason": None, "message": None}}}),
        {"exited": LastExit(code=137, reason="", message="")},
    ),
    "no node": (
        pod(**condition("PodScheduled", "False", reason="Unschedulable", message="0/1 nodes")),
        {"unschedulable": "0/1 nodes"},
    ),
    "no node, no word": (
        pod(**condition("PodScheduled", "False", reason="Unschedulable")),
        {"unschedulable": "no node fits"},
    ),
    "gated": (pod(**condition("PodScheduled", "False", reason="SchedulingGated", message="m")), {"unschedulable": ""}),
    "scheduled": (pod(**condition("PodScheduled", "True", reason="Unschedulable")), {"unschedulable": ""}),
    "evicted": (pod(phase="Failed"), {"finished": True}),
    "over": (pod(phase="Succeeded"), {"finished": True}),
}


@pytest.mark.parametrize("case", PODS)
def test_a_pod_is_seen_as_it_is(case: str) -> None:
    body, expected = PODS[case]
    view = pod_view(body)
    assert {name: getattr(view, name) for name in expected} == expected


def test_another_containers_state_is_not_the_engines() -> None:
    body = pod({"state": {"running": {}}})
    assert pod_view(body).running
    assert not pod_view(body, "tuner").running


def test_labels_and_deletion_are_read() -> None:
    labels = {"headrace.dev/revision": "r", "headrace.dev/track": "stable"}
    view = pod_view({"metadata": {**METADATA, "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert (view.revision, view.track, view.terminating) == ("r", "stable", True)


def test_a_restart_is_another_process() -> None:
    views = [pod_view(pod({"restartCount": count})) for count in (0, 0, 1)]
    assert views[0].identity == views[1].identity != views[2].identity


def deployment(generation: int = 1, **status: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"headrace.dev/revision": "r"}}}
    return {"metadata": {"name": "x", "generation": generation}, "spec": {"template": template}, "status": status}


DEPLOYMENTS = {
    "new": (deployment(), {"current": False, "replicas": 0, "revision": "r", "failure": "", "deadline_exceeded": ""}),
    "seen": (
        deployment(observedGeneration=1, replicas=2, updatedReplicas=1),
        {"current": True, "replicas": 2},
    ),
    "behind": (deployment(2, observedGeneration=1), {"current": False}),
    "late": (
        deployment(**condition("Progressing", "False", reason="ProgressDeadlineExceeded", message="timed out")),
        {"deadline_exceeded": "timed out"},
    ),
    "late, no word": (
        deployment(**condition("Progressing", "False", reason="ProgressDeadlineExceeded")),
        {"deadline_exceeded": "no progress"},
    ),
    "on its way": (
        deployment(**condition("Progressing", "True", reason="NewReplicaSetCreated")),
        {"deadline_exceeded": ""},
    ),
    "over quota": (deployment(**condition("ReplicaFailure", "True", message="quota")), {"failure": "quota"}),
    "was over quota": (deployment(**condition("ReplicaFailure", "False", message="quota")), {"failure": ""}),
}


@pytest.mark.parametrize("case", DEPLOYMENTS)
def test_a_deployment_is_seen_as_it_is(case: str) -> None:
    body, expected = DEPLOYMENTS[case]
    view = deployment_view(body)
    assert {name: getattr(view, name) for name in expected} == expected


def test_a_deployment_without_spec_and_status_is_not_an_error() -> None:
    assert deployment_view({"metadata": {"name": "x"}, "spec": None, "status": None}).revision == ""


JOBS = {
    "new": ({}, {"succeeded": False, "failed": "", "active": 0, "ended_at": ""}),
    "active": ({"active": 1}, {"active": 1}),
    "complete": (
        {"completionTime": "2026-01-01T00:00:00Z", **condition("Complete", "True")},
        {"succeeded": True, "ended_at": "2026-01-01T00:00:00Z"},
    ),
    "failed": (condition("Failed", "True", message="backoff limit"), {"failed": "backoff limit", "succeeded": False}),
    "failed, no word": (condition("Failed", "True"), {"failed": "the Job failed"}),
    "not failed": (condition("Failed", "False", message="m"), {"failed": ""}),
}


@pytest.mark.parametrize("case", JOBS)
def test_a_job_is_seen_as_it_is(case: str) -> None:
    status, expected = JOBS[case]
    view = job_view({"metadata": METADATA, "status": status})
    assert {name: getattr(view, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("body", "address"),
    [
        (None, ""),
        ({}, ""),
        ({"spec": None}, ""),
        ({"spec": {"clusterIP": None}}, ""),
        ({"spec": {"clusterIP": "None"}}, ""),
        ({"spec": {"clusterIP": "10.0.0.1"}}, "10.0.0.1"),
    ],
)
def test_a_service_has_an_address_or_none(body: dict[str, Any] | None, address: str) -> None:
    assert cluster_ip(body) == address


def test_pods_come_oldest_first_and_by_name_among_equals() -> None:
    pods = [PodView(name=name, uid=name, created=created) for name, created in (("c", "1"), ("b", "2"), ("a", "2"))]
    assert [pod.name for pod in by_age(pods)] == ["c", "a", "b"]


def test_times_are_read_with_their_zone() -> None:
    assert timestamp("2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=UTC)
