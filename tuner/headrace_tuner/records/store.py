"""Where records are kept: the contract, and a store in a folder. The store in a ConfigMap is in `configmap.py`.

A store has one writer. `acquire` makes this process the writer or raises; a writer that was replaced gets `LeaseLost`
from the next write and must stop.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from headrace_api.v1alpha1.record_codec import AnyRecord, StudyRecords, decode, encode, key_of
from headrace_tuner.errors import LeaseLost, StoreUnavailable, TunerError

MAX_BYTES = 900_000  # a ConfigMap holds 1 MiB


class Store(Protocol):
    """Durable records of one study."""

    async def acquire(self) -> None:
        """Become the only writer. Raises `LeaseLost` if another process already is."""
        ...

    async def load(self) -> StudyRecords:
        """All records. Raises `TunerError` if one cannot be read."""
        ...

    async def save(self, record: AnyRecord) -> None:
        """Write one record; it is durable when this returns. Raises `LeaseLost` or `StoreUnavailable`."""
        ...

    async def release(self) -> None:
        """Let another writer take over at once. Never raises."""
        ...


def read_all(data: Mapping[str, str]) -> StudyRecords:
    """Records of all entries. Raises `TunerError` naming those that cannot be read: without one of them the study would
    continue from another history."""
    records = decode(data)
    if records.unreadable:
        listed = "; ".join(map(str, records.unreadable))
        raise TunerError(f"records cannot be read: {listed}. Delete these entries to measure them again")
    return records


class FolderStore:
    """One file per record, written beside and renamed, so that a kill leaves the old one or the new one.

    The kernel holds the lock and releases it when the process ends: no clock, no expiry.
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
        return read_all({path.name: path.read_text() for path in self._folder.glob("*.json")})

    async def save(self, record: AnyRecord) -> None:
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
