"""Records in the ConfigMap RUN-records, by server-side apply with the version that was read: compare and swap.

One entry, the lease, names the tuner that may write them. No two clocks are compared: a lease has run out when its text
has not changed for its whole length on the watcher's own clock. The holder renews it at a third of that.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from headrace_api import names
from headrace_api.v1alpha1.record_codec import AnyRecord, StudyRecords, encode, key_of
from headrace_client.errors import Conflict, KubeError
from headrace_client.kube import Kube
from headrace_client.resources import CONFIG_MAPS
from headrace_tuner.errors import LeaseLost, StoreUnavailable
from headrace_tuner.records.store import MAX_BYTES, read_all

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
LEASE_KEY = "lease.json"
LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`holder` is a process, `host` its pod; `renewals` makes the text of each renewal different."""

    holder: str = ""
    host: str = ""
    renewals: int = 0

    def encode(self) -> str:
        """The entry's text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str | None) -> Lease:
        """The lease in an entry; a free one if the entry is missing or cannot be read."""
        try:
            values = json.loads(text or "{}")
            return cls(
                holder=str(values.get("holder", "")),
                host=str(values.get("host", "")),
                renewals=int(values.get("renewals", 0)),
            )
        except (ValueError, TypeError, AttributeError):
            return cls()

    def renewed(self) -> Lease:
        """The same holder's next lease."""
        return Lease(holder=self.holder, host=self.host, renewals=self.renewals + 1)


def may_take(seen: Lease, mine: Lease, *, unchanged_for: float) -> bool:
    """Whether `mine` may replace `seen`, which has been unchanged for `unchanged` seconds.

    A lease of the same host is dead: a pod runs one tuner at a time, so its holder was killed before this one started.
    """
    return not seen.holder or seen.holder == mine.holder or seen.host == mine.host or unchanged_for >= LEASE_SECONDS


class ConfigMapStore:
    """The Job's records. Every write carries all entries and the resourceVersion they are based on.

    A harmless write by something else (a label, an annotation) only moves the version: it is read again and the write
    repeated, as long as the lease in it is still ours.
    """

    def __init__(self, kube: Kube, *, namespace: str, run: str, owner: dict[str, Any]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._run = run
        self._owner = owner
        host = os.environ.get("HOSTNAME") or socket.gethostname()  # the pod's name in a cluster
        self._lease = Lease(holder=f"{host}/{os.getpid()}/{secrets.token_hex(4)}", host=host)
        self._data: dict[str, str] = {}
        self._version: str | None = None
        self._writing = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    async def acquire(self) -> None:
        """See `Store`. Waits as long as another holder renews its lease; only the Job's deadline ends that."""
        if self._renewing is not None:
            return
        seen, since = "", asyncio.get_running_loop().time()
        while True:
            await self._read()
            now, text = asyncio.get_running_loop().time(), self._data.get(LEASE_KEY, "")
            if text != seen:
                seen, since = text, now
            if may_take(Lease.decode(text), self._lease, unchanged_for=now - since):
                try:
                    await self._swap({LEASE_KEY: self._lease.encode()})
                except Conflict:
                    continue
                break
            log.info("another tuner holds the records", extra={"holder": Lease.decode(text).holder})
            await asyncio.sleep(POLL_SECONDS)
        self._renewing = asyncio.create_task(self._renew())

    async def load(self) -> StudyRecords:
        """See `Store`."""
        return read_all(self._data)

    async def save(self, record: AnyRecord) -> None:
        """See `Store`."""
        await self._write({key_of(record): encode(record)})

    async def release(self) -> None:
        """See `Store`."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None
        with suppress(KubeError, LeaseLost, StoreUnavailable):
            await self._write({LEASE_KEY: Lease().encode()})

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            self._lease = self._lease.renewed()
            try:
                await self._write({LEASE_KEY: self._lease.encode()})
            except LeaseLost as error:
                log.error(str(error))
                return
            except StoreUnavailable as error:
                log.warning(str(error))  # another tuner cannot write either; the next write shows who holds the lease

    async def _write(self, entries: dict[str, str]) -> None:
        if self.lost.is_set():
            raise LeaseLost("another tuner has taken over the records")
        async with self._writing:
            while True:
                try:
                    return await self._swap(entries)
                except Conflict:
                    await self._read()
                self._check_mine()

    def _check_mine(self) -> None:
        holder = Lease.decode(self._data.get(LEASE_KEY)).holder
        if holder != self._lease.holder:
            self.lost.set()
            raise LeaseLost(f"{holder or 'no tuner'} holds the records now; this tuner stops")

    async def _swap(self, entries: dict[str, str]) -> None:
        data = self._data | entries
        size = sum(len(key) + len(text.encode()) for key, text in data.items())
        if size > MAX_BYTES:
            raise StoreUnavailable(
                f"the records of {self._run} have {size} bytes, more than a ConfigMap takes: lower spec.budget.trials"
            )
        try:
            written = await self._kube.apply(self._body(data), field_manager=names.TUNER_MANAGER)
        except Conflict:
            raise
        except KubeError as error:
            raise StoreUnavailable(f"the records cannot be written: {error}") from error
        self._data, self._version = data, written["metadata"]["resourceVersion"]

    async def _read(self) -> None:
        name = names.records_config_map(self._run)
        try:
            found = await self._kube.get(CONFIG_MAPS, name, self._namespace)
        except KubeError as error:
            raise StoreUnavailable(f"the records cannot be read: {error}") from error
        self._data = dict((found or {}).get("data") or {})
        self._version = found["metadata"]["resourceVersion"] if found else None

    def _body(self, data: dict[str, str]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": names.records_config_map(self._run),
            "namespace": self._namespace,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TUNING_RUN_LABEL: self._run},
            "ownerReferences": [self._owner],
        }
        if self._version is not None:
            metadata["resourceVersion"] = self._version
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
