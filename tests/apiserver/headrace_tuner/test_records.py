"""The records against the real API server: versions, conflicts, ownership, garbage that is not ours."""

import asyncio

import pytest
from kube_patches import merge_patch

from headrace_api import names
from headrace_api.v1alpha1.records import RunPhase, StudyRecord
from headrace_client.kube import Kube
from headrace_client.resources import CONFIG_MAPS
from headrace_tuner.errors import LeaseLost
from headrace_tuner.records.configmap import ConfigMapStore

STUDY = StudyRecord(phase=RunPhase.SEARCHING, message="trial 3")
OWNER = {"apiVersion": names.API_VERSION, "kind": "TuningRun", "name": "run", "uid": "0-0", "controller": True}


def store_of(kube: Kube, namespace: str, monkeypatch, host: str) -> ConfigMapStore:
    monkeypatch.setenv("HOSTNAME", host)
    return ConfigMapStore(kube, namespace=namespace, run="run", owner=OWNER)


async def test_records_are_kept_and_read_back(kube, namespace, monkeypatch) -> None:
    first = store_of(kube, namespace, monkeypatch, "pod-1")
    await first.acquire()
    await first.save(STUDY)
    # Somebody labels the object meanwhile: our next write must neither fail nor undo it.
    label = {"metadata": {"labels": {"team": "chat"}}}
    await merge_patch(kube, CONFIG_MAPS, "run-records", namespace, patch=label)
    await first.save(STUDY.model_copy(update={"message": "trial 4"}))
    await first.release()
    body = await kube.get(CONFIG_MAPS, "run-records", namespace)
    assert body["metadata"]["labels"] == {
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        names.TUNING_RUN_LABEL: "run",
        "team": "chat",
    }
    assert body["metadata"]["ownerReferences"][0]["uid"] == "0-0"
    managers = {item["manager"] for item in body["metadata"]["managedFields"]}
    assert names.TUNER_MANAGER in managers
    second = store_of(kube, namespace, monkeypatch, "pod-2")
    await second.acquire()
    assert (await second.load()).study.message == "trial 4"
    await second.release()


async def test_two_tuners_at_once_end_with_one_writer(kube, namespace, monkeypatch) -> None:
    # The same pod name, so that neither waits for the other's lease: only the version stands between them.
    stores = [store_of(kube, namespace, monkeypatch, "pod-1") for _ in range(2)]
    await asyncio.gather(*(store.acquire() for store in stores))
    results = await asyncio.gather(*(store.save(STUDY) for store in stores), return_exceptions=True)
    assert sorted(type(result) for result in results if result is not None) == [LeaseLost]
    for store in stores:
        await store.release()


async def test_the_loser_of_the_lease_cannot_write(kube, namespace, monkeypatch) -> None:
    first, second = (store_of(kube, namespace, monkeypatch, "pod-1") for _ in range(2))
    await first.acquire()
    await second.acquire()
    with pytest.raises(LeaseLost):
        await first.save(STUDY)
    await first.release()
    await second.save(STUDY)
    await second.release()
