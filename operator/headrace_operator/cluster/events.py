"""Events on our objects. An event's name is made from its content, so the same event is never posted twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from headrace_api.names import OPERATOR_MANAGER
from headrace_api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason
from headrace_client.errors import Conflict, KubeError
from headrace_operator.cluster.hashing import digest
from headrace_operator.protocols import KubeApi

LOG = logging.getLogger(__name__)
MAX_MESSAGE = 1000  # the API server refuses more than 1024


class EventPoster:
    """Posts one event for each condition that changed. A failure is logged and never stops a reconcile."""

    def __init__(self, kube: KubeApi, clock: Callable[[], datetime]) -> None:
        self._kube = kube
        self._clock = clock

    async def conditions(self, body: Mapping[str, Any], changed: Iterable[Condition]) -> None:
        """Post an event on `body` for each of the `changed` conditions."""
        for item in changed:
            try:
                await self._kube.create(condition_event(body, item, now=self._clock()))
            except Conflict:
                continue  # posted before, perhaps by the previous operator process
            except KubeError as error:
                LOG.warning("an event could not be posted: %s", error)


def condition_event(body: Mapping[str, Any], item: Condition, *, now: datetime) -> dict[str, Any]:
    """The Event of one condition, as Kubernetes JSON; a Warning if `is_warning` says so."""
    metadata = body["metadata"]
    since = item.last_transition_time.isoformat()
    identity = digest([metadata["uid"], item.type, item.status.value, item.reason, since])
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{identity}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": item.reason,
        "message": f"{item.type}={item.status.value}: {item.message}"[:MAX_MESSAGE],
        "type": "Warning" if is_warning(item) else "Normal",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": OPERATOR_MANAGER},
        "reportingComponent": OPERATOR_MANAGER,
        "reportingInstance": OPERATOR_MANAGER,
    }


# Reasons that belong to a normal start, or that the spec asks for.
_WAITING = frozenset(
    {
        Reason.PODS_PENDING,
        Reason.ENGINE_STARTING,
        Reason.CONFIG_PENDING,
        Reason.SCALED_TO_ZERO,
        Reason.NOT_ROUTABLE,
        Reason.PENDING,
        Reason.RUNNING,
        Reason.FINISHED,
        Reason.NOT_DECIDED,
        Reason.NOTHING_TO_APPLY,
        Reason.NOT_REQUESTED,
        Reason.AWAITING_APPROVAL,
        Reason.APPLYING,
    }
)
_STOPPED = frozenset({Reason.DEADLINE_EXCEEDED, Reason.API_ERROR})


def is_warning(item: Condition) -> bool:
    """Whether a person should look at it; also true of a reason that this release doesn't know."""
    known = next((reason for reason in Reason if reason.value == item.reason), None)
    if item.status is not ConditionStatus.FALSE or known in _WAITING:
        return False
    return item.type != ConditionType.PROGRESSING.value or known in _STOPPED
