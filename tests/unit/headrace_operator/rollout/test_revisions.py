"""The record of the proposal in force: written, read, and undone."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_resources import service

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_operator.rollout.revisions import (
    ActiveRevision,
    RevisionState,
    active_revision_config_map,
    read_active_revision,
)

SERVICE = InferenceService.parse(service())
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "decode_ratio": st.floats(0, 0.9),
        "prefill_chunk_size": st.integers(1, 4096),
        "enable_chunked_prefill": st.booleans(),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "max_queue_tokens": st.none(),
    },
)


def revision(knobs: dict[str, Any], **more: Any) -> ActiveRevision:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    known = {"tuning_run": "tune", "run_uid": "u", "state": RevisionState.KEPT, "applied_at": when}
    return ActiveRevision(**{**known, "knobs": knobs, **more})


@given(KNOBS, st.booleans())
def test_a_record_survives_its_config_map(knobs: dict[str, Any], nested: bool) -> None:
    record = revision(knobs, restore=revision({"decode_ratio": 0.5}).to_json() if nested else None)
    read = read_active_revision(active_revision_config_map(SERVICE, record))
    assert read == record
    assert {name: type(value) for name, value in read.knobs.items()} == {name: type(knobs[name]) for name in knobs}
    assert (record.before() is not None) == nested


@pytest.mark.parametrize(
    "config_map", [None, {}, {"data": None}, {"data": {}}, {"data": {names.TUNED_KEY: ""}}, {"data": {"else": "x"}}]
)
def test_without_a_record_nothing_is_in_force(config_map: dict[str, Any] | None) -> None:
    assert read_active_revision(config_map) is None


def test_the_empty_revision_is_written_as_an_empty_config_map_of_the_service() -> None:
    body = active_revision_config_map(SERVICE, None)
    assert (body["metadata"]["name"], body["data"]) == ("chat-tuned", {})
    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-of-chat"
    assert read_active_revision(body) is None


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{}", r"tuned\.json: tuning_run"),
        ("not json", r"tuned\.json: tuned\.json: Invalid JSON"),
        (
            '{"tuning_run": "t", "run_uid": "u", "state": "Else", "knobs": {}, "applied_at": "2026-01-01T00:00:00Z"}',
            "state",
        ),
    ],
)
def test_content_that_is_not_a_record_is_an_error_that_names_the_place(text: str, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        read_active_revision({"data": {names.TUNED_KEY: text}})


def test_undoing_goes_back_one_proposal_at_a_time() -> None:
    first = revision({"decode_ratio": 0.1})
    second = revision({"decode_ratio": 0.2}, state=RevisionState.CHECKING, restore=first.to_json())
    assert second.before() == first
    assert first.before() is None


def test_the_status_shows_what_is_in_force_and_what_was_before() -> None:
    shown = revision({"decode_ratio": 0.5}, override_pinned=True, previous={"decode_ratio": 0.1}).status().to_kube()
    assert shown == {
        "tuningRun": "tune",
        "knobs": {"decodeRatio": 0.5},
        "overridePinned": True,
        "appliedAt": "2026-01-01T00:00:00Z",
        "previous": {"decodeRatio": 0.1},
    }
