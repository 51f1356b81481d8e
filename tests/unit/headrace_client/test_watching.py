"""The watch, through every way in which a stream can end."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from headrace_client import resources as res
from headrace_client.errors import Forbidden, KubeError, Unavailable
from headrace_client.kube import Kube
from headrace_client.watching import EventType


def item(name: str, version: int, uid: str = "u", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, **more}}


def listing(*items: dict[str, Any], version: int = 10) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": body}


def error(code: int) -> dict[str, Any]:
    return event("ERROR", {"kind": "Status", "code": code, "message": f"error {code}"})


def bookmark(version: int) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


async def take(kube: Kube, count: int, **options: Any) -> list[str]:
    """The first events, as `TYPE name@version`."""
    found = []
    async with aclosing(kube.watch(res.CONFIG_MAPS, "n", **options)) as events:
        async for one in events:
            metadata = one.object["metadata"]
            found.append(f"{one.type} {metadata.get('name', '')}@{metadata['resourceVersion']}")
            if len(found) == count:
                break
    return found


async def test_lists_then_streams(double: Any) -> None:
    double.then(double.json(listing(item("a", 3))), double.stream(event("MODIFIED", item("a", 11)), end="silence"))
    async with double.kube() as kube:
        assert await take(kube, 3, label_selector="x=y") == ["ADDED a@3", "SYNCED @10", "MODIFIED a@11"]
    assert double.seen[1].query == {
        "labelSelector": "x=y",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "240",
        "resourceVersion": "10",
    }


async def test_a_stream_that_ends_resumes_from_its_last_version(double: Any) -> None:
    double.then(
        double.json(listing()),
        double.stream(event("ADDED", item("a", 11)), bookmark(15)),
        double.stream(event("ADDED", item("b", 16)), end="silence"),
    )
    async with double.kube() as kube:
        assert await take(kube, 4) == ["SYNCED @10", "ADDED a@11", "BOOKMARK @15", "ADDED b@16"]
    assert double.seen[2].query["resourceVersion"] == "15"
    assert double.delays == []


@pytest.mark.parametrize("in_stream", [True, False])
async def test_after_410_it_lists_again_and_reports_the_difference(double: Any, in_stream: bool) -> None:
    before = listing(item("gone", 1), item("same", 2), item("changed", 3), item("reborn", 4, uid="u1"))
    after = listing(item("same", 2), item("changed", 20), item("reborn", 21, uid="u2"), item("new", 22), version=30)
    gone = double.stream(error(410)) if in_stream else double.failure(410, "too old")
    double.then(double.json(before), gone, double.json(after), double.stream(end="silence"))
    async with double.kube() as kube:
        events = await take(kube, 11)
    assert events[5:] == [
        "DELETED gone@1",
        "MODIFIED changed@20",
        "DELETED reborn@4",
        "ADDED reborn@21",
        "ADDED new@22",
        "SYNCED @30",
    ]


async def test_500_in_the_stream_is_reported_and_survived(double: Any) -> None:
    double.then(
        double.json(listing()),
        double.stream(event("ADDED", item("a", 11)), error(500)),
        double.stream(event("DELETED", item("a", 12)), end="silence"),
    )
    errors: list[KubeError] = []
    async with double.kube() as kube:
        assert await take(kube, 3, on_error=errors.append) == ["SYNCED @10", "ADDED a@11", "DELETED a@12"]
    assert [str(failure) for failure in errors] == ["watch ConfigMap in n: error 500"]
    assert double.delays == [0.2]


async def test_a_silent_stream_is_cut_and_resumed_without_listing(double: Any) -> None:
    double.then(
        double.json(listing()),
        double.stream(event("ADDED", item("a", 11)), end="silence"),
        double.stream(event("ADDED", item("b", 12)), end="silence"),
    )
    errors: list[KubeError] = []
    async with double.kube() as kube:
        events = await take(kube, 3, inactivity_seconds=0.05, on_error=errors.append)
    assert events == ["SYNCED @10", "ADDED a@11", "ADDED b@12"]
    assert "silent for 0.05 s" in str(errors[0])
    assert double.seen[2].query["resourceVersion"] == "11"


async def test_a_reset_stream_backs_off_and_resumes(double: Any) -> None:
    double.then(
        double.json(listing()),
        double.stream(event("ADDED", item("a", 11)), end="reset"),
        double.failure(500, "starting"),
        double.stream(event("ADDED", item("b", 12)), end="silence"),
    )
    errors: list[KubeError] = []
    async with double.kube() as kube:
        assert await take(kube, 3, on_error=errors.append) == ["SYNCED @10", "ADDED a@11", "ADDED b@12"]
    assert double.delays == [0.2, 0.4]
    assert all(isinstance(failure, Unavailable) for failure in errors)


async def test_403_of_the_listing_is_reported_and_tried_again(double: Any) -> None:
    double.then(double.failure(403, "no"), double.json(listing()), double.stream(end="silence"))
    errors: list[KubeError] = []
    async with double.kube() as kube:
        assert await take(kube, 1, on_error=errors.append) == ["SYNCED @10"]
    assert [type(failure) for failure in errors] == [Forbidden]


async def test_empty_streams_are_not_retried_in_a_tight_loop(double: Any) -> None:
    double.then(double.json(listing()), double.stream(), double.stream(), double.stream(bookmark(11), end="silence"))
    async with double.kube() as kube:
        assert await take(kube, 2) == ["SYNCED @10", "BOOKMARK @11"]
    assert double.delays == [0.2, 0.4]


async def test_after_three_failures_in_a_row_it_lists_again(double: Any) -> None:
    silent = double.stream(end="silence")
    double.then(double.json(listing(item("a", 3))), silent, silent, silent, double.json(listing(version=5)))
    async with double.kube() as kube:
        events = await take(kube, 4, inactivity_seconds=0.01)
    assert events == ["ADDED a@3", "SYNCED @10", "DELETED a@3", "SYNCED @5"]


async def test_events_may_be_large_and_arrive_in_pieces(double: Any) -> None:
    import json

    line = json.dumps(event("ADDED", item("a", 11, annotations={"x": "y" * 500_000}))).encode() + b"\n"
    double.then(double.json(listing()), double.stream(line[:7], line[7:300_000], line[300_000:], end="silence"))
    async with double.kube() as kube:
        assert await take(kube, 2) == ["SYNCED @10", "ADDED a@11"]


async def test_rubbish_in_the_stream_is_an_error_not_the_end(double: Any) -> None:
    double.then(
        double.json(listing()), double.stream(b"<html>\n"), double.stream(event("ADDED", item("a", 11)), end="silence")
    )
    errors: list[KubeError] = []
    async with double.kube() as kube:
        assert await take(kube, 2, on_error=errors.append) == ["SYNCED @10", "ADDED a@11"]
    assert "not an event: b'<html>'" in str(errors[0])


async def test_managed_fields_are_left_out(double: Any) -> None:
    double.then(double.json(listing(item("a", 3, managedFields=[{"manager": "x"}]))))
    async with double.kube() as kube, aclosing(kube.watch(res.CONFIG_MAPS, "n")) as events:
        first = await anext(events)
    assert first.type is EventType.ADDED
    assert "managedFields" not in first.object["metadata"]


async def test_cancelling_the_reader_closes_the_stream(double: Any) -> None:
    double.then(double.json(listing()), double.stream(end="silence"))
    async with double.kube() as kube:
        reader = asyncio.create_task(take(kube, 2))
        while len(double.seen) < 2:
            await asyncio.sleep(0.001)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
