"""A pass must not decide from a status that the operator has already replaced."""

from typing import Any

from headrace_operator.cluster.fresh_status import FreshStatus
from headrace_operator.protocols import Key

KEY = Key("InferenceService", "default", "chat")


def body(version: str, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": version}}


def test_our_own_write_is_seen_until_the_cache_shows_something_newer() -> None:
    fresh = FreshStatus()
    assert fresh.newest(KEY, body("1")) == body("1")
    fresh.wrote(KEY, body("1"), body("2"))
    assert fresh.newest(KEY, body("1")) == body("2")
    fresh.wrote(KEY, body("2"), body("3"))
    assert fresh.newest(KEY, body("1")) == fresh.newest(KEY, body("2")) == body("3")
    assert fresh.newest(KEY, body("3")) == body("3")
    assert fresh.newest(KEY, body("1")) == body("1")  # forgotten: the cache only moves forward


def test_a_write_that_changed_nothing_hides_nothing() -> None:
    fresh = FreshStatus()
    fresh.wrote(KEY, body("1"), body("1"))
    assert fresh.newest(KEY, body("1")) == body("1")


def test_a_new_object_of_the_same_name_is_told_apart() -> None:
    fresh = FreshStatus()
    fresh.wrote(KEY, body("1"), body("2"))
    assert fresh.newest(KEY, body("1", "other")) == body("1", "other")


def test_a_deleted_object_is_gone() -> None:
    fresh = FreshStatus()
    fresh.wrote(KEY, body("1"), body("2"))
    assert fresh.newest(KEY, None) is None
    assert fresh.newest(KEY, body("1")) == body("1")
