"""A watch that never ends by itself: list, then stream; resume after an interruption, list again after a 410.

Not the watch of the `kubernetes` package: after 410 it asks once more with the same version and then gives up, a line
longer than its buffer breaks it, and it waits forever on a connection that has gone silent.

States: list -> stream -> (stream ends, is silent, or breaks) stream from the last version -> (410) list.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import aiohttp

from headrace_client.errors import Gone, KubeError, Unavailable
from headrace_client.resources import ApiResource
from headrace_client.transport import (
    CONNECTION_ERRORS,
    ApiCall,
    Retry,
    Transport,
    error_of,
    unreachable,
)

LOG = logging.getLogger(__name__)

PAGE_SIZE = 500
STREAM_SECONDS = 240  # asked of the server
INACTIVITY_SECONDS = 80.0  # bookmarks arrive about every 60 s; a longer silence is a dead connection

RELIST_AFTER = 3  # failures in a row without an event


class EventType(StrEnum):
    """What a watch reports. SYNCED follows the events of each complete listing; BOOKMARK is a sign of life."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    SYNCED = "SYNCED"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. `object` is the whole object without managedFields; for SYNCED and BOOKMARK, metadata only."""

    type: EventType
    object: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What to watch, and for how long to wait. `on_error` is called for each failure; the watch continues."""

    resource: ApiResource
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    stream_seconds: int = STREAM_SECONDS
    inactivity_seconds: float = INACTIVITY_SECONDS
    retry: Retry = field(default_factory=Retry)
    on_error: Callable[[KubeError], None] | None = None

    @property
    def what(self) -> str:
        """Kind and namespace, for messages."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.resource.kind}{where}"

    @property
    def selectors(self) -> dict[str, str]:
        """Query parameters of both selectors."""
        both = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in both.items() if value}


async def list_pages(transport: Transport, options: WatchOptions) -> tuple[list[dict[str, Any]], str]:
    """Every object, read page by page, and the resourceVersion of the listing. Raises `KubeError`."""
    items: list[dict[str, Any]] = []
    params = {**options.selectors, "limit": str(PAGE_SIZE)}
    path = options.resource.path(options.namespace)
    while True:
        try:
            text = await transport.send(ApiCall(method="GET", path=path, what=f"list {options.what}", params=params))
        except Gone:
            if "continue" not in params:
                raise
            # The snapshot behind the pages expired half-way: start over.
            items, params = [], {**options.selectors, "limit": str(PAGE_SIZE)}
            continue
        page = json.loads(text)
        items += [_typed(item, options.resource) for item in page.get("items") or []]
        token = page["metadata"].get("continue")
        if not token:
            return items, page["metadata"].get("resourceVersion", "")
        params["continue"] = token


def _typed(item: dict[str, Any], resource: ApiResource) -> dict[str, Any]:
    # The items of a list carry neither apiVersion nor kind.
    return {"apiVersion": resource.api_version, "kind": resource.kind, **item}


def _slim(item: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in item.get("metadata", {}).items() if name != "managedFields"}
    return {**item, "metadata": metadata}


class Watcher:
    """State of one watch: what was seen, and up to which version."""

    def __init__(self, transport: Transport, options: WatchOptions) -> None:
        self._transport = transport
        self._options = options
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}
        self._version: str | None = None

    async def events(self) -> AsyncGenerator[WatchEvent]:
        """Endless events: those of a listing first, then those of one stream after another."""
        failures = 0
        while True:
            try:
                if self._version is None:
                    for event in await self._relist():
                        yield event
                async with aclosing(self._stream()) as stream:
                    async for event in stream:
                        failures = 0
                        yield event
            except Gone:
                self._version = None
            except KubeError as error:
                await self._pause(error, failures)
                failures += 1
                if failures % RELIST_AFTER == 0:
                    # Perhaps the server was restored from an older state and our version is in its future.
                    self._version = None

    async def _pause(self, error: KubeError, failures: int) -> None:
        LOG.warning("watch of %s continues after: %s", self._options.what, error)
        if self._options.on_error is not None:
            self._options.on_error(error)
        await self._options.retry.sleep(self._options.retry.delay(failures))

    async def _relist(self) -> list[WatchEvent]:
        """The differences between what was seen and a new listing, followed by SYNCED."""
        listed, version = await list_pages(self._transport, self._options)
        now = {_key(item): _slim(item) for item in listed}
        events = [WatchEvent(EventType.DELETED, item) for key, item in self._seen.items() if key not in now]
        for key, item in now.items():
            old = self._seen.get(key)
            if old is None:
                events.append(WatchEvent(EventType.ADDED, item))
            elif _uid(old) != _uid(item):
                # Deleted and created again while no stream was open.
                events += [WatchEvent(EventType.DELETED, old), WatchEvent(EventType.ADDED, item)]
            elif _version(old) != _version(item):
                events.append(WatchEvent(EventType.MODIFIED, item))
        self._seen, self._version = now, version
        return [*events, WatchEvent(EventType.SYNCED, {"metadata": {"resourceVersion": version}})]

    async def _stream(self) -> AsyncGenerator[WatchEvent]:
        """Events of one connection until it ends. Raises `Gone` or another `KubeError`."""
        call = self._call()
        # The server ends the stream first; the client's limit is for one that does not.
        limits = aiohttp.ClientTimeout(total=self._options.stream_seconds + 30, sock_connect=30)
        empty = True
        try:
            async with self._transport.exchange(call, limits=limits) as response, _aborted_after(response):
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise error_of(call.what, response.status, await response.text())
                async for line in self._lines(response):
                    yield self._event(line)
                    empty = False
        except CONNECTION_ERRORS as error:
            raise unreachable(self._transport.server, call.what, error) from error
        if empty:
            # Without a pause, a server or proxy that ends each stream at once would be asked in a tight loop.
            raise Unavailable(f"{call.what}: the stream ended without an event")

    def _call(self) -> ApiCall:
        options = self._options
        params = {
            **options.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(options.stream_seconds),
            "resourceVersion": self._version or "",
        }
        path = options.resource.path(options.namespace)
        return ApiCall(method="GET", path=path, what=f"watch {options.what}", params=params)

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        # Not StreamReader.readline: it refuses lines beyond its buffer, and objects may have a megabyte.
        buffer = b""
        while True:
            try:
                async with asyncio.timeout(self._options.inactivity_seconds):
                    chunk = await response.content.readany()
            except TimeoutError as error:
                silence = f"silent for {self._options.inactivity_seconds:g} s"
                raise Unavailable(f"watch {self._options.what}: {silence}; connecting again") from error
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line

    def _event(self, line: bytes) -> WatchEvent:
        try:
            raw = json.loads(line)
            kind, body = raw["type"], raw["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"watch {self._options.what}: not an event: {line[:200]!r}") from error
        if kind == "ERROR":
            code = int(body.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
            raise error_of(f"watch {self._options.what}", code, json.dumps(body))
        return self._note(EventType(kind), _slim(body))

    def _note(self, kind: EventType, item: Mapping[str, Any]) -> WatchEvent:
        body = dict(item)
        self._version = _version(body)
        if kind is EventType.DELETED:
            self._seen.pop(_key(body), None)
        elif kind is not EventType.BOOKMARK:
            self._seen[_key(body)] = body
        return WatchEvent(kind, body)


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(item: Mapping[str, Any]) -> str:
    return str(item["metadata"].get("uid", ""))


def _version(item: Mapping[str, Any]) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


@asynccontextmanager
async def _aborted_after(response: aiohttp.ClientResponse) -> AsyncGenerator[None]:
    """Drop the connection of a stream that is left in the middle.

    Closing it gracefully would wait for the server to close its side of TLS, and the server is busy streaming: the
    socket would outlive the client.
    """
    try:
        yield
    finally:
        connection = response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
