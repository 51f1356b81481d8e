"""The Kubernetes client against the real API server: apply, conflicts, credentials, paging, watching."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_patches import apply_status, merge_patch

from headrace_client import resources as res
from headrace_client import watching
from headrace_client.errors import Conflict, Forbidden, Invalid, NotFound
from headrace_client.kube import Kube
from headrace_client.watching import WatchEvent


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def service(namespace: str, **status: Any) -> dict[str, Any]:
    body = {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": namespace},
    }
    return {**body, "status": status} if status else {**body, "spec": {"model": {"uri": "file:///m"}}}


async def test_apply_creates_changes_and_removes_what_is_left_out(kube: Kube, namespace: str) -> None:
    await kube.apply(config_map(namespace, one="1", two="2"), field_manager="m")
    stored = await kube.apply(config_map(namespace, one="3"), field_manager="m")
    assert stored["data"] == {"one": "3"}


async def test_a_field_of_another_manager_is_a_conflict_without_force(kube: Kube, namespace: str) -> None:
    await kube.apply(config_map(namespace, one="1"), field_manager="first")
    with pytest.raises(Conflict, match=rf'apply ConfigMap {namespace}/a: .*conflict with "first": .data.one'):
        await kube.apply(config_map(namespace, one="2"), field_manager="second", force=False)
    forced = await kube.apply(config_map(namespace, one="2"), field_manager="second")
    assert forced["data"] == {"one": "2"}


async def test_two_managers_share_the_status_by_fields(kube: Kube, namespace: str) -> None:
    await kube.create(service(namespace))
    await apply_status(kube, service(namespace, replicas=2), field_manager="a")
    stored = await apply_status(kube, service(namespace, revision="r1"), field_manager="b")
    assert stored["status"] == {"replicas": 2, "revision": "r1"}
    assert stored["metadata"]["generation"] == 1


async def test_status_of_a_stale_object_is_a_conflict(kube: Kube, namespace: str) -> None:
    old = await kube.create(service(namespace))
    await merge_patch(kube, res.INFERENCE_SERVICES, "chat", namespace, patch={"spec": {"replicas": 2}})
    with pytest.raises(Conflict, match=rf"replace status of InferenceService {namespace}/chat: .*been modified"):
        await kube.replace_status(res.INFERENCE_SERVICES, {**old, "status": {"replicas": 1}})


async def test_status_of_nothing_is_not_found(kube: Kube, namespace: str) -> None:
    with pytest.raises(NotFound, match='"chat" not found'):
        await apply_status(kube, service(namespace, replicas=1), field_manager="m")


async def test_create_get_replace_delete(kube: Kube, namespace: str) -> None:
    await kube.create(config_map(namespace, one="1"))
    with pytest.raises(Conflict) as twice:
        await kube.create(config_map(namespace))
    assert twice.value.reason == "AlreadyExists"
    found = await kube.get(res.CONFIG_MAPS, "a", namespace)
    assert found is not None
    assert (await kube.replace({**found, "data": {"two": "2"}}))["data"] == {"two": "2"}
    await kube.delete(res.CONFIG_MAPS, "a", namespace)
    assert await kube.get(res.CONFIG_MAPS, "a", namespace) is None
    with pytest.raises(NotFound):
        await kube.delete(res.CONFIG_MAPS, "a", namespace, missing_ok=False)


async def test_refusal_lists_its_causes(kube: Kube, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await kube.create(config_map(namespace, name="Not A Name"))
    assert refused.value.causes[0].field == "metadata.name"


async def test_a_resource_that_is_not_installed_is_not_found(kube: Kube, namespace: str) -> None:
    with pytest.raises(NotFound, match="list PodMonitor"):
        await kube.list(res.POD_MONITORS, namespace)


async def test_lists_page_by_page_and_by_label(kube: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PAGE_SIZE", 2)
    for number in range(5):
        body = config_map(namespace, name=f"m{number}")
        body["metadata"]["labels"] = {"odd": str(number % 2)}
        await kube.create(body)
    assert [item["metadata"]["name"] for item in await kube.list(res.CONFIG_MAPS, namespace)] == [
        f"m{number}" for number in range(5)
    ]
    odd = await kube.list(res.CONFIG_MAPS, namespace, "odd=1")
    assert [(item["kind"], item["metadata"]["name"]) for item in odd] == [("ConfigMap", "m1"), ("ConfigMap", "m3")]


async def test_a_service_accounts_token_works_and_is_held_to_its_rights(
    kube: Kube, namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa", "namespace": namespace}}
    await kube.create(account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/sa/token"
    answer = json.loads(await kube.raw("POST", path, body=request))
    document = yaml.safe_load(kubeconfig.read_text())
    (tmp_path / "token").write_text(answer["status"]["token"])
    document["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    async with Kube.auto(kubeconfig=tmp_path / "config") as client:
        assert "gitVersion" in await client.raw("GET", "/version")
        with pytest.raises(Forbidden, match=rf"list ConfigMap in {namespace}: .*system:serviceaccount:{namespace}:sa"):
            await client.list(res.CONFIG_MAPS, namespace)


async def test_certificates_may_be_files(kubeconfig: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(kubeconfig.read_text())
    for section, key, names in (
        ("clusters", "cluster", ["certificate-authority"]),
        ("users", "user", ["client-certificate", "client-key"]),
    ):
        entry = document[section][0][key]
        for name in names:
            (tmp_path / f"{name}.pem").write_bytes(base64.b64decode(entry.pop(f"{name}-data")))
            entry[name] = f"{name}.pem"
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    async with Kube.auto(kubeconfig=tmp_path / "config") as client:
        assert (await client.raw("GET", "/readyz")) == "ok"


async def following(events: AsyncGenerator[WatchEvent]) -> tuple[str, str]:
    """Type and name of the next event that is not a mere sign of life."""
    async with asyncio.timeout(30):
        while True:
            event = await anext(events)
            if event.type != "BOOKMARK":
                return event.type.value, event.object["metadata"].get("name", "")


async def test_watch_tells_what_happens(kube: Kube, namespace: str) -> None:
    await kube.create(config_map(namespace, name="before"))
    async with aclosing(kube.watch(res.CONFIG_MAPS, namespace)) as events:
        assert await following(events) == ("ADDED", "before")
        assert await following(events) == ("SYNCED", "")
        await kube.create(config_map(namespace, name="new"))
        assert await following(events) == ("ADDED", "new")
        await kube.apply(config_map(namespace, name="new", x="1"), field_manager="m")
        assert await following(events) == ("MODIFIED", "new")
        await kube.delete(res.CONFIG_MAPS, "new", namespace)
        assert await following(events) == ("DELETED", "new")


async def test_watch_goes_on_when_the_server_ends_the_stream(kube: Kube, namespace: str) -> None:
    async with aclosing(kube.watch(res.CONFIG_MAPS, namespace, stream_seconds=1)) as events:
        assert await following(events) == ("SYNCED", "")
        for name in ("a", "b", "c"):
            await asyncio.sleep(0.8)  # so that the streams of one second end in between
            await kube.create(config_map(namespace, name=name))
            assert await following(events) == ("ADDED", name)


async def test_a_version_that_is_too_old_is_listed_again(kube: Kube, namespace: str) -> None:
    transport = kube._transport
    watcher = watching.Watcher(transport, watching.WatchOptions(resource=res.CONFIG_MAPS, namespace=namespace))
    await kube.create(config_map(namespace, name="a"))
    watcher._version = "1"  # from before the server started: a real 410
    async with aclosing(watcher.events()) as events:
        async with asyncio.timeout(30):
            first = await anext(events)
    assert first.object["metadata"]["name"] == "a"


async def test_impersonation_is_held_to_the_others_rights(kube: Kube, namespace: str) -> None:
    user = {"Impersonate-User": f"system:serviceaccount:{namespace}:nobody"}
    async with Kube(kube.connection, headers=user) as client:
        with pytest.raises(Forbidden, match="nobody"):
            await client.list(res.CONFIG_MAPS, namespace)
