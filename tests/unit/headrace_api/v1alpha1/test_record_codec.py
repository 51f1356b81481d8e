"""The codec of study records: records read back as written, even in old forms; unreadable ones are named."""

import json

import pytest

from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.record_codec import AnyRecord, StudyRecords, decode, encode, key_of
from headrace_api.v1alpha1.records import (
    Candidate,
    Half,
    Measures,
    RunPhase,
    StudyRecord,
    TimeWindow,
    TrialRecord,
    TrialState,
    VerificationRecord,
)
from headrace_core.evidence.counts import Counts

KNOBS = HotKnobs.of({"prefill_chunk_size": 64})
COUNTS = Counts(good=30, requests=40, seconds=20.25, output_tokens=1280)
WINDOW = TimeWindow(start="2026-01-01T00:00:00Z", end="2026-01-01T00:00:25Z")
STUDY = StudyRecord(phase=RunPhase.SEARCHING, message="trial 3", baseline=Candidate(knobs=KNOBS))
TRIAL = TrialRecord(
    number=7, state=TrialState.INFEASIBLE, knobs=KNOBS, score=1.5, attainment=0.75, seed=3, window=WINDOW,
    measures=Measures(goodput=1.48, attainment=0.75, good=30, requests=40, seconds=20.25, output_tokens=1280),
    constraints={"attainment": 0.15},
)  # fmt: skip
VERIFICATION = VerificationRecord(
    number=3, winner=True, knobs=KNOBS, seed=5, state=TrialState.COMPLETE, window=WINDOW, halves=[Half.of(COUNTS)] * 2
)


@pytest.mark.parametrize(
    ("record", "key"), [(STUDY, "study.json"), (TRIAL, "trial-0007.json"), (VERIFICATION, "verify-0003.json")]
)
def test_a_record_reads_back_as_it_was(record: AnyRecord, key: str) -> None:
    assert key_of(record) == key
    found = decode({key: encode(record)})
    assert [item for item in (found.study, *found.trials, *found.windows) if item is not None] == [record]
    assert found.unreadable == ()


def test_the_counts_travel_with_the_record() -> None:
    assert decode({"trial-0007.json": encode(TRIAL)}).trials[0].measures.counts() == COUNTS
    half = decode({"verify-0003.json": encode(VERIFICATION)}).windows[0].halves[0]
    assert (half.good, half.requests, half.seconds, half.tokens) == (30, 40, 20.25, 1280)


def test_records_come_in_order_of_their_number_whatever_their_keys_say() -> None:
    data = {f"trial-{place}.json": encode(TRIAL.model_copy(update={"number": number}))
            for place, number in (("0001", 12), ("10000", 2), ("0005", 5))}  # fmt: skip
    assert [record.number for record in decode(data).trials] == [2, 5, 12]


def test_other_entries_are_skipped() -> None:
    data = {"lease.json": "whatever", "note.txt": "", "trial-x.json": "{", "verify-.json": "{", "trial-0001.tmp": "{"}
    assert decode(data) == StudyRecords()


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("study.json", "{", "Invalid JSON"),
        ("study.json", '{"phase": "Dreaming"}', "phase: "),
        ("trial-0003.json", '{"number": -1}', "and 2 more"),
        ("trial-0003.json", "[]", "object"),
        ("verify-0003.json", "", "Invalid JSON"),
    ],
)
def test_unreadable_entries_are_named_and_the_others_are_read(key: str, text: str, problem: str) -> None:
    found = decode({"trial-0007.json": encode(TRIAL), key: text})
    assert found.trials == (TRIAL,)
    assert [item.key for item in found.unreadable] == [key]
    assert problem in found.unreadable[0].problem
    assert str(found.unreadable[0]).startswith(f"{key}: ")


def old_trial(**measures: float) -> str:
    body = json.loads(encode(TRIAL))
    body["measures"] = measures
    return json.dumps(body)


@pytest.mark.parametrize("good", range(8))
def test_a_trial_recorded_before_counts_were_kept_gets_them(good: int) -> None:
    text = old_trial(goodput=good / 20.0, attainment=good / 7, requests=7.0)
    counts = decode({"trial-0007.json": text}).trials[0].measures.counts()
    assert (counts.good, counts.requests) == (good, 7)
    # Without a good request the rate does not give the time; the record's span, drain included, does.
    assert counts.seconds == pytest.approx(20.0 if good else 25.0)


def test_a_trial_without_a_rate_stays_without_counts() -> None:
    assert decode({"trial-0007.json": old_trial(goodput=1.0)}).trials[0].measures.counts() is None


def test_halves_recorded_before_their_length_was_kept_are_read() -> None:
    body = json.loads(encode(VERIFICATION))
    body["halves"] = [{"good": 3.0, "requests": 4.0, "tokens": 60.0}] * 2
    assert decode({"verify-0003.json": json.dumps(body)}).windows[0].halves == [Half(good=3, requests=4, tokens=60)] * 2


def test_the_baseline_is_that_of_the_study() -> None:
    assert StudyRecords().baseline is None
    assert StudyRecords(study=STUDY).baseline == STUDY.baseline
