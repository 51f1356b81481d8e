"""The entries of ConfigMap RUN-records, as the tuner writes them and the operator reads them.

`decode` never fails: it returns what it could read and names what it could not. Its caller decides what to do then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from headrace_api import names
from headrace_api.v1alpha1.records import Candidate, Measures, StudyRecord, TrialRecord, VerificationRecord

AnyRecord = StudyRecord | TrialRecord | VerificationRecord


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """An entry that this version cannot read: damaged, or written by a newer one. `problem` is for people."""

    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """Everything that a study recorded; trials and windows are in order of number."""

    study: StudyRecord | None = None
    trials: tuple[TrialRecord, ...] = ()
    windows: tuple[VerificationRecord, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()

    @property
    def baseline(self) -> Candidate | None:
        """The config that was in force when the study began."""
        return self.study.baseline if self.study else None


def key_of(record: AnyRecord) -> str:
    """Key of the record's entry in the ConfigMap."""
    if isinstance(record, StudyRecord):
        return names.STUDY_KEY
    if isinstance(record, TrialRecord):
        return names.trial_key(record.number)
    return names.verification_key(record.number)


def encode(record: AnyRecord) -> str:
    """The record as JSON with camelCase keys, without nulls."""
    return record.model_dump_json(by_alias=True, exclude_none=True)


def decode(data: Mapping[str, str]) -> StudyRecords:
    """Records of all entries; entries that are not records, such as the lease, are skipped."""
    study: list[StudyRecord] = []
    trials: list[TrialRecord] = []
    windows: list[VerificationRecord] = []
    unreadable: list[UnreadableRecord] = []
    for key, text in sorted(data.items()):
        try:
            if key == names.STUDY_KEY:
                study.append(StudyRecord.model_validate_json(text))
            elif names.trial_number(key) is not None:
                trials.append(_with_counts(TrialRecord.model_validate_json(text)))
            elif names.verification_number(key) is not None:
                windows.append(VerificationRecord.model_validate_json(text))
        except ValidationError as error:
            unreadable.append(UnreadableRecord(key, _problem(error)))
    return StudyRecords(
        study=study[0] if study else None,
        trials=tuple(sorted(trials, key=lambda record: record.number)),
        windows=tuple(sorted(windows, key=lambda record: record.number)),
        unreadable=tuple(unreadable),
    )


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    more = f" and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}"


def _with_counts(record: TrialRecord) -> TrialRecord:
    """Give a trial recorded before counts were kept its counts: exact ones, as its attainment was not rounded."""
    old = record.measures
    if old is None or old.good is not None or old.attainment is None or old.requests is None:
        return record
    good = float(round(old.attainment * old.requests))
    seconds = good / old.goodput if old.goodput else _span(record)
    counted: Measures = old.model_copy(update={"good": good, "seconds": seconds})
    return record.model_copy(update={"measures": counted})


def _span(record: TrialRecord) -> float | None:
    return None if record.window is None else (record.window.end - record.window.start).total_seconds()
