"""The ConfigMap store against an API server double that has versions and conflicts; the lease's rules."""

import asyncio

import pytest

from headrace_api.v1alpha1.records import RunPhase, StudyRecord
from headrace_client.errors import Conflict, Unavailable
from headrace_tuner.errors import LeaseLost, StoreUnavailable
from headrace_tuner.records import configmap
from headrace_tuner.records.configmap import LEASE_SECONDS, ConfigMapStore, Lease, may_take

STUDY = StudyRecord(phase=RunPhase.SEARCHING)


class FakeKube:
    """One ConfigMap with a resourceVersion."""

    def __init__(self) -> None:
        self.body: dict | None = None
        self.applied: list[dict] = []
        self.down = False

    async def get(self, _resource, _name, _namespace=None) -> dict | None:
        if self.down:
            raise Unavailable("the API server is away")
        return self.body

    async def apply(self, body, *, field_manager: str, force: bool = True) -> dict:
        assert field_manager == "headrace-tuner"
        if self.down:
            raise Unavailable("the API server is away")
        version = self.version
        if "resourceVersion" in body["metadata"] and body["metadata"]["resourceVersion"] != version:
            raise Conflict("the object has been modified")
        self.applied.append(body)
        self.body = body | {"metadata": body["metadata"] | {"resourceVersion": str(int(version) + 1)}}
        return self.body

    @property
    def version(self) -> str:
        return self.body["metadata"]["resourceVersion"] if self.body else "0"

    def touch(self) -> None:
        """Somebody adds a label."""
        self.body = self.body | {"metadata": self.body["metadata"] | {"resourceVersion": str(int(self.version) + 1)}}


def store_of(kube, monkeypatch, host: str = "pod-1") -> ConfigMapStore:
    monkeypatch.setenv("HOSTNAME", host)
    return ConfigMapStore(kube, namespace="ns", run="run", owner={"kind": "TuningRun", "uid": "u"})


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


async def test_records_survive_the_writer(kube, monkeypatch) -> None:
    first = store_of(kube, monkeypatch)
    await first.acquire()
    await first.save(STUDY)
    await first.release()
    metadata = kube.body["metadata"]
    assert metadata["name"] == "run-records"
    assert metadata["ownerReferences"] == [{"kind": "TuningRun", "uid": "u"}]
    assert metadata["labels"]["headrace.dev/tuning-run"] == "run"
    second = store_of(kube, monkeypatch, "pod-2")
    await second.acquire()
    assert (await second.load()).study == STUDY
    await second.release()


async def test_a_harmless_change_by_another_client_only_repeats_the_write(kube, monkeypatch) -> None:
    store = store_of(kube, monkeypatch)
    await store.acquire()
    kube.touch()
    await store.save(STUDY)
    assert "study.json" in kube.body["data"]
    await store.release()


async def test_a_tuner_that_lost_the_lease_writes_no_more(kube, monkeypatch) -> None:
    store = store_of(kube, monkeypatch)
    await store.acquire()
    thief = store_of(kube, monkeypatch)  # the same pod, started anew: its predecessor is dead
    await thief.acquire()
    with pytest.raises(LeaseLost, match="holds the records now"):
        await store.save(STUDY)
    with pytest.raises(LeaseLost):
        await store.save(STUDY)
    assert "study.json" not in kube.body["data"]
    await store.release()
    await thief.save(STUDY)
    await thief.release()


async def test_another_pod_waits_until_the_lease_has_not_changed_for_its_length(kube, monkeypatch) -> None:
    now, loop = 0.0, asyncio.get_running_loop()
    store = store_of(kube, monkeypatch)
    await store.acquire()
    store._renewing.cancel()  # it was killed
    monkeypatch.setattr(loop, "time", lambda: now)
    naps = []

    async def nap(seconds: float) -> None:
        nonlocal now
        naps.append(seconds)
        now += seconds

    monkeypatch.setattr(configmap.asyncio, "sleep", nap)
    other = store_of(kube, monkeypatch, "pod-2")
    await other.acquire()
    monkeypatch.undo()
    other._renewing.cancel()
    assert sum(naps[: int(LEASE_SECONDS)]) >= LEASE_SECONDS


async def test_an_api_server_that_is_away_is_named(kube, monkeypatch) -> None:
    store = store_of(kube, monkeypatch)
    await store.acquire()
    kube.down = True
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await store.save(STUDY)
    await store.release()


async def test_records_too_big_for_a_config_map_are_refused(kube, monkeypatch) -> None:
    monkeypatch.setattr(configmap, "MAX_BYTES", 10)
    store = store_of(kube, monkeypatch)
    with pytest.raises(StoreUnavailable, match="more than a ConfigMap takes"):
        await store.acquire()


def test_which_tuner_may_take_a_lease() -> None:
    mine, other = Lease(holder="a/1", host="a"), Lease(holder="b/1", host="b")
    assert may_take(Lease(), mine, unchanged_for=0)
    assert may_take(mine, mine, unchanged_for=0)
    assert may_take(Lease(holder="a/0", host="a"), mine, unchanged_for=0)
    assert not may_take(other, mine, unchanged_for=LEASE_SECONDS - 1)
    assert may_take(other, mine, unchanged_for=LEASE_SECONDS)
    assert mine.renewed().encode() != mine.encode()


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"holder": "x", "renewals": "y"}'])
def test_a_lease_that_cannot_be_read_is_free(text) -> None:
    assert Lease.decode(text) == Lease()
