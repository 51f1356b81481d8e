"""Where records are kept: a contract, in memory, or in a folder. The ConfigMap is in `configmap.py`.

A store has one writer. `acquire` makes this process the writer or raises; a writer that lost its place gets `LeaseLost`
from the next write and must stop.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from pydantic import ValidationError

from headrace_api import names
from headrace_api.v1alpha1.records import StudyRecord, TrialRecord, VerificationRecord
from headrace_tuner.errors import LeaseLost, StoreUnavailable, TunerError
from headrace_tuner.ladder.trials import StudyRecords

VERIFY_KEY_PREFIX = "verify-"
MAX_BYTES = 900_000  # a ConfigMap holds 1 MiB


class Store(Protocol):
    """Durable records of one study."""

    async def acquire(self) -> None:
        """Become the only writer. Raises `LeaseLost` where somebody else is."""
        ...

    async def load(self) -> StudyRecords:
        """All that was written. Raises `TunerError` for what cannot be read."""
        ...

    async def save(self, record: StudyRecord | TrialRecord | VerificationRecord) -> None:
        """Write one record; it is durable when this returns. Raises `LeaseLost` or `StoreUnavailable`."""
        ...

    async def release(self) -> None:
        """Let the next writer in at once. Never raises."""
        ...


def key_of(record: StudyRecord | TrialRecord | VerificationRecord) -> str:
    """Name of the record's entry."""
    if isinstance(record, StudyRecord):
        return names.STUDY_KEY
    if isinstance(record, TrialRecord):
        return names.trial_key(record.number)
    return f"{VERIFY_KEY_PREFIX}{record.number:04d}.json"


def encode(record: StudyRecord | TrialRecord | VerificationRecord) -> str:
    """The record as JSON with camelCase keys, without nulls."""
    return record.model_dump_json(by_alias=True, exclude_none=True)


def decode(data: Mapping[str, str]) -> StudyRecords:
    """Records of all entries; others are ignored. Raises `TunerError` naming an entry that cannot be read."""
    study, trials, windows = None, [], []
    for key, text in sorted(data.items()):
        try:
            if key == names.STUDY_KEY:
                study = StudyRecord.model_validate_json(text)
            elif names.trial_number(key) is not None:
                trials.append(TrialRecord.model_validate_json(text))
            elif key.startswith(VERIFY_KEY_PREFIX):
                windows.append(VerificationRecord.model_validate_json(text))
        except ValidationError as error:
            raise TunerError(
                f"the record {key} cannot be read ({error.error_count()} problems): delete it, and it is measured again"
            ) from error
    trials.sort(key=lambda record: record.number)
    windows.sort(key=lambda record: record.number)
    return StudyRecords(study=study, trials=tuple(trials), windows=tuple(windows))


@dataclass(slots=True)
class MemoryStore:
    """For tests and dry runs: lost with the process."""

    data: dict[str, str] = field(default_factory=dict)

    async def acquire(self) -> None:
        """See `Store`."""

    async def load(self) -> StudyRecords:
        """See `Store`."""
        return decode(self.data)

    async def save(self, record: StudyRecord | TrialRecord | VerificationRecord) -> None:
        """See `Store`."""
        self.data[key_of(record)] = encode(record)

    async def release(self) -> None:
        """See `Store`."""


class FolderStore:
    """One file per record, written beside and renamed, so that a kill leaves the old one or the new one.

    The lock is the kernel's and goes with the process: no clock, no expiry.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: IO[str] | None = None

    async def acquire(self) -> None:
        """See `Store`."""
        if self._lock is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / ".lock").open("a")
        except OSError as error:
            raise StoreUnavailable(f"{self._folder}: records cannot be kept there: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise LeaseLost(
                f"{self._folder}: another tuner is writing there; wait for it, or use another folder"
            ) from error
        self._lock = lock

    async def load(self) -> StudyRecords:
        """See `Store`."""
        return decode({path.name: path.read_text() for path in self._folder.glob("*.json")})

    async def save(self, record: StudyRecord | TrialRecord | VerificationRecord) -> None:
        """See `Store`."""
        if self._lock is None:
            raise LeaseLost(f"{self._folder}: acquire it before writing")
        path = self._folder / key_of(record)
        beside = path.with_suffix(".tmp")
        try:
            with beside.open("w") as file:
                file.write(encode(record))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            raise StoreUnavailable(f"{path}: cannot be written: {error.strerror}") from error

    async def release(self) -> None:
        """See `Store`."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
