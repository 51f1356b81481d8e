"""Waits on an object by watching it: each event is passed to `judge` until that returns a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from headrace_client.kube import Kube
from headrace_client.resources import ApiResource
from headrace_client.watching import EventType
from headrace_local.errors import LocalError

Found = TypeVar("Found")
Object = Mapping[str, Any]


async def wait_for(
    kube: Kube,
    resource: ApiResource,
    name: str,
    namespace: str,
    judge: Callable[[Object], Found | None],
    *,
    seconds: float,
) -> Found:
    """The first value other than None that `judge` gives for the object. Raises `LocalError` after `seconds`."""
    last: Object = {}
    try:
        async with asyncio.timeout(seconds), aclosing(_objects(kube, resource, name, namespace)) as objects:
            async for last in objects:
                found = judge(last)
                if found is not None:
                    return found
    except TimeoutError as error:
        raise LocalError(
            f"{resource.kind} {namespace}/{name} did not reach the expected state within {seconds:.0f} s.",
            why=describe(last),
            todo=f"kubectl -n {namespace} describe {resource.plural} {name}",
        ) from error
    raise AssertionError("unreachable: a watch does not end by itself")


async def _objects(kube: Kube, resource: ApiResource, name: str, namespace: str) -> Any:
    events = kube.watch(resource, namespace, field_selector=f"metadata.name={name}")
    async with aclosing(events):
        async for event in events:
            if event.type in (EventType.ADDED, EventType.MODIFIED):
                yield event.object


def condition(resource: Object, kind: str) -> Object:
    """The object's condition of type `kind`, or an empty one."""
    conditions = resource.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def describe(resource: Object) -> str:
    """The object's conditions as text, for the message of a failed wait."""
    conditions = resource.get("status", {}).get("conditions", [])
    said = [
        f"{item['type']}={item['status']} ({item.get('reason', '')}: {item.get('message', '')})" for item in conditions
    ]
    message = resource.get("status", {}).get("message", "")
    return "; ".join([message, *said] if message else said) or "It has no status yet: is the operator running?"
