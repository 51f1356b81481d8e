"""Conditions, names and records."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace_api import names
from headrace_api.v1alpha1.conditions import (
    RUN_CONDITIONS,
    SERVICE_CONDITIONS,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    merge_conditions,
)
from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.records import (
    RunPhase,
    StudyRecord,
    StudyVerdict,
    TrialRecord,
    TrialState,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def ready(status: str, reason: Reason, now: datetime) -> Condition:
    return Condition(
        type=ConditionType.READY.value,
        status=ConditionStatus(status),
        reason=reason.value,
        message="m",
        observed_generation=3,
        last_transition_time=now,
    )


def test_a_condition_as_the_api_server_stores_it() -> None:
    assert ready("Unknown", Reason.ENGINE_NOT_READY, NOW).to_kube() == {
        "type": "Ready",
        "status": "Unknown",
        "reason": "EngineNotReady",
        "message": "m",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_transition_time_moves_only_with_the_status() -> None:
    old = [ready("False", Reason.ENGINE_NOT_READY, NOW)]
    same = merge_conditions(old, [ready("False", Reason.NOT_ROUTABLE, LATER)])
    assert (same[0].reason, same[0].last_transition_time) == ("NotRoutable", NOW)
    changed = merge_conditions(old, [ready("True", Reason.SERVING, LATER)])
    assert changed[0].last_transition_time == LATER


def test_conditions_set_by_others_stay() -> None:
    other = ready("True", Reason.SERVING, NOW).model_copy(update={"type": "example.com/Checked"})
    merged = merge_conditions([other], [ready("True", Reason.SERVING, NOW)])
    assert [item.type for item in merged] == ["Ready", "example.com/Checked"]
    assert find_condition(merged, ConditionType.READY) is merged[0]
    assert find_condition(merged, ConditionType.APPLIED) is None


def test_every_type_and_reason_is_documented_under_a_resource() -> None:
    tables = (SERVICE_CONDITIONS, RUN_CONDITIONS)
    assert {type_ for table in tables for type_ in table} == set(ConditionType)
    assert {reason for table in tables for reasons in table.values() for reason in reasons} == set(Reason)


def test_every_word_says_what_it_means() -> None:
    for word in (*ConditionType, *Reason, *RunPhase, *StudyVerdict, *TrialState):
        assert word.doc.endswith("."), word
        assert str(word) == word.value


def test_children_and_keys() -> None:
    assert names.trial_key(7) == "trial-0007.json"
    assert names.trial_number("trial-0007.json") == 7
    assert names.trial_number("study.json") is None
    assert names.trial_number("trial-x.json") is None
    assert names.selector_string(names.stable_selector("chat")) == "headrace.dev/service=chat,headrace.dev/track=stable"
    assert names.trial_labels("chat", "tune")[names.TUNING_RUN_LABEL] == "tune"


def test_the_longest_name_leaves_room_for_the_names_of_its_children() -> None:
    longest = "n" * names.MAX_NAME_LENGTH
    pod_hash = "-1234567890-abcde"
    children = [
        names.stable_deployment(longest) + pod_hash,
        names.service_name(longest),
        names.trial_name(longest) + pod_hash[:11],
        names.tuner_name(longest) + pod_hash[-6:],
        names.trial_admin_secret(longest),
        names.records_config_map(longest),
    ]
    assert max(len(child) for child in children) <= 63


@pytest.mark.parametrize("state", list(TrialState))
def test_a_trial_record_round_trips_and_shortens_to_its_summary(state: TrialState) -> None:
    record = TrialRecord(
        number=7,
        state=state,
        knobs=HotKnobs.of({"max_num_seqs": 8, "dtype": "auto"}),
        score=1.5,
        constraints={"ttft": -0.2},
    )
    again = TrialRecord.model_validate_json(record.model_dump_json(by_alias=True))
    assert again == record
    assert again.knobs.values() == {"max_num_seqs": 8}
    assert record.summary().to_kube() == {
        "number": 7,
        "state": state.value,
        "knobs": {"maxNumSeqs": 8},
        "score": 1.5,
        "reason": "",
    }


def test_a_study_record_may_have_a_newer_jobs_fields() -> None:
    assert StudyRecord.model_validate({"phase": "Searching", "inventedLater": 1}).phase is RunPhase.SEARCHING
