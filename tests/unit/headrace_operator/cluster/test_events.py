"""Which conditions are warnings, and what an event contains."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_cluster import Clock, Cluster
from operator_resources import service

from headrace_api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason
from headrace_client.errors import KubeError
from headrace_operator.cluster.events import MAX_MESSAGE, EventPoster, condition_event, is_warning

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BODY = service()


def condition(type_: str = "Ready", status: str = "False", reason: str = "CrashLooping", **more: Any) -> Condition:
    known = {"message": "m", "last_transition_time": NOW}
    return Condition(type=type_, status=ConditionStatus(status), reason=reason, **{**known, **more})


WAITS = (
    Reason.PODS_PENDING, Reason.ENGINE_STARTING, Reason.CONFIG_PENDING, Reason.SCALED_TO_ZERO, Reason.NOT_ROUTABLE,
    Reason.PENDING, Reason.RUNNING, Reason.FINISHED, Reason.NOT_DECIDED, Reason.NOTHING_TO_APPLY,
    Reason.NOT_REQUESTED, Reason.AWAITING_APPROVAL, Reason.APPLYING,
)  # fmt: skip


@pytest.mark.parametrize("reason", Reason)
def test_a_condition_that_does_not_hold_is_a_warning_unless_it_is_only_a_wait(reason: Reason) -> None:
    assert is_warning(condition(reason=reason.value)) is (reason not in WAITS)


@pytest.mark.parametrize(
    ("item", "warns"),
    [
        (condition(status="True"), False),
        (condition(status="Unknown"), False),
        (condition(reason="OfANewerRelease"), True),
        (condition("Progressing", reason="UpToDate"), False),
        (condition("Progressing", reason="OfANewerRelease"), False),
        (condition("Progressing", reason="DeadlineExceeded"), True),
        (condition("Progressing", reason="APIError"), True),
    ],
)
def test_exceptions_to_which_conditions_warn(item: Condition, warns: bool) -> None:
    assert is_warning(item) is warns


def test_an_event_names_its_object_and_the_condition() -> None:
    event = condition_event(BODY, condition(message="x" * 2000), now=NOW)
    assert (event["type"], event["reason"]) == ("Warning", "CrashLooping")
    assert event["message"].startswith("Ready=False: xx")
    assert len(event["message"]) == MAX_MESSAGE
    assert event["involvedObject"]["uid"] == BODY["metadata"]["uid"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"message": "other words"}, True),
        ({"reason": "OutOfMemory"}, False),
        ({"status": "Unknown"}, False),
        ({"type_": "EngineReady"}, False),
        ({"last_transition_time": NOW + timedelta(seconds=1)}, False),
    ],
)
def test_one_transition_has_one_name(change: dict[str, Any], same: bool) -> None:
    names = [condition_event(BODY, item, now=NOW)["metadata"]["name"] for item in (condition(), condition(**change))]
    assert (names[0] == names[1]) is same


async def test_an_event_is_posted_once_and_a_failure_stops_nothing() -> None:
    cluster, clock = Cluster(), Clock()
    poster = EventPoster(cluster, clock.now)
    await poster.conditions(BODY, [condition()])
    await poster.conditions(BODY, [condition(), condition(ConditionType.ENGINE_READY.value)])
    assert len([key for key in cluster.objects if key[0] == "Event"]) == 2


class Refusing:
    """An API server that refuses every event."""

    def __init__(self) -> None:
        self.asked = 0

    async def create(self, body: Any) -> Any:
        self.asked += 1
        raise KubeError("quota", status=403)


async def test_a_refused_event_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    refusing: Any = Refusing()
    await EventPoster(refusing, lambda: NOW).conditions(BODY, [condition(), condition("EngineReady")])
    assert refusing.asked == 2
    assert caplog.text.count("could not be posted: quota") == 2
