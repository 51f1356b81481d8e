"""The keys under which objects are indexed, and lookups of objects that are not there."""

from typing import Any

import pytest

from headrace_api import names
from headrace_operator.runtime.cache import IndexCache, label_key, object_key, owners, run_service_key, slim


def body(labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "ns", "labels": labels}, **more}


def test_objects_are_found_by_place_and_labels() -> None:
    assert object_key(body()) == ("ns", "a")
    assert label_key(body({names.SERVICE_LABEL: "chat"}), names.SERVICE_LABEL) == ("ns", "chat")


@pytest.mark.parametrize("labels", [None, {}, {names.SERVICE_LABEL: ""}])
def test_without_the_label_there_is_no_key(labels: dict[str, str] | None) -> None:
    assert label_key(body(labels), names.SERVICE_LABEL) is None


@pytest.mark.parametrize(
    ("spec", "key"),
    [({"serviceRef": {"name": "chat"}}, ("ns", "chat")), ({"serviceRef": None}, None), ({}, None), (None, None)],
)
def test_a_run_is_found_by_its_service(spec: dict[str, Any] | None, key: Any) -> None:
    assert run_service_key(body(spec=spec)) == key


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, {}),
        ({names.SERVICE_LABEL: "chat"}, {"InferenceService": "chat"}),
        ({names.TUNING_RUN_LABEL: "tune"}, {"TuningRun": "tune"}),
        (names.trial_labels("chat", "tune"), {"InferenceService": "chat", "TuningRun": "tune"}),
    ],
)
def test_a_child_wakes_its_owners(labels: dict[str, str] | None, expected: dict[str, str]) -> None:
    assert owners(body(labels)) == expected


def test_the_cache_keeps_no_managed_fields() -> None:
    fat = body(spec={"a": 1})
    fat["metadata"]["managedFields"] = [{"large": "list"}]
    assert slim(fat) == body(spec={"a": 1})
    assert "managedFields" in fat["metadata"]


def test_a_missing_object_is_none_and_missing_lists_are_empty() -> None:
    chat, run = body(), body()
    cache = IndexCache(
        services={("ns", "a"): [chat]},
        runs={("ns", "r"): [run]},
        runs_by_service={("ns", "a"): [run]},
        children={("Service", "ns", "a"): [body()]},
        engine_pods_index={},
        run_pods_index={},
    )
    assert cache.service("ns", "a") is chat
    assert cache.runs_of("ns", "a") == [run]
    assert (cache.service("ns", "x"), cache.run("ns", "x"), cache.child("Job", "ns", "a")) == (None, None, None)
    assert (cache.engine_pods("ns", "a"), cache.run_pods("ns", "r"), cache.runs_of("ns", "x")) == ([], [], [])
    assert (cache.all_services(), cache.all_runs()) == ([chat], [run])
