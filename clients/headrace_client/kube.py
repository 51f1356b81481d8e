"""The Kubernetes client: dicts in and out, server-side apply, typed errors, a watch that survives failures.

A thin typed layer over the asyncio client of the official `kubernetes` package.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

from headrace_client.connection import Connection, auto_connection
from headrace_client.errors import KubeError, NotFound
from headrace_client.resources import ApiResource, resource_of
from headrace_client.transport import ApiCall, Retry, Transport
from headrace_client.watching import (
    INACTIVITY_SECONDS,
    STREAM_SECONDS,
    Watcher,
    WatchEvent,
    WatchOptions,
    list_pages,
)

APPLY = "application/apply-patch+yaml"  # JSON is YAML


class Kube:
    """Client of one API server; an async context manager. Every method raises `KubeError` or a subclass of it.

    Objects are dicts as the API server has them. 429, 5xx and lost connections are tried again with back-off.
    `headers` go with each call, for example Impersonate-User to test another user's permissions.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        retry: Retry | None = None,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.connection = connection
        self._transport = Transport(connection, retry=retry or Retry(), timeout=timeout, headers=headers)

    @classmethod
    def auto(cls, context: str | None = None, kubeconfig: str | Path | None = None) -> Self:
        """Client of the named context or kubeconfig; else of the pod's own cluster; else of the default kubeconfig."""
        return cls(auto_connection(context, kubeconfig))

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def get(
        self, res: ApiResource, name: str, namespace: str | None = None, *, subresource: str = ""
    ) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        path = res.path(namespace, name, subresource=subresource)
        try:
            return await self._json(ApiCall(method="GET", path=path, what=_what("get", res, name, namespace)))
        except NotFound:
            return None

    async def list(
        self, res: ApiResource, namespace: str | None = None, label_selector: str = "", *, field_selector: str = ""
    ) -> list[dict[str, Any]]:
        """Every object of one namespace, or of all namespaces; each with apiVersion and kind."""
        options = WatchOptions(
            resource=res, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        items, _ = await list_pages(self._transport, options)
        return items

    async def apply(self, body: Mapping[str, Any], *, field_manager: str, force: bool = True) -> dict[str, Any]:
        """Server-side apply. Without `force`, a field that another manager owns raises `Conflict`."""
        res, name, namespace = _target(body)
        return await self._json(
            ApiCall(
                method="PATCH",
                path=res.path(namespace, name),
                what=_what("apply", res, name, namespace),
                params={"fieldManager": field_manager, "force": "true" if force else "false"},
                body=body,
                content_type=APPLY,
            )
        )

    async def replace(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object; if `body` has a resourceVersion, a change by someone else raises `Conflict`."""
        return await self._put(*_target(body), body=body, subresource="")

    async def replace_status(self, res: ApiResource, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status; if `body` has a resourceVersion, a change by someone else raises `Conflict`."""
        metadata = body["metadata"]
        return await self._put(res, metadata["name"], metadata.get("namespace"), body=body, subresource="status")

    async def _put(
        self, res: ApiResource, name: str, namespace: str | None, *, body: Mapping[str, Any], subresource: str
    ) -> dict[str, Any]:
        what = _what("replace status of" if subresource else "replace", res, name, namespace)
        path = res.path(namespace, name, subresource=subresource)
        return await self._json(ApiCall(method="PUT", path=path, what=what, body=body))

    async def create(self, body: Mapping[str, Any], *, field_manager: str = "") -> dict[str, Any]:
        """Create the object. Raises `Conflict` (reason AlreadyExists) if it exists."""
        res, name, namespace = _target(body)
        params = {"fieldManager": field_manager} if field_manager else None
        return await self._json(
            ApiCall(
                method="POST",
                path=res.path(namespace),
                what=_what("create", res, name or str(body["metadata"].get("generateName", "")), namespace),
                params=params,
                body=body,
                repeatable=False,
            )
        )

    async def delete(
        self,
        res: ApiResource,
        name: str,
        namespace: str | None = None,
        *,
        missing_ok: bool = True,
        propagation: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete the object and, in the background, what it owns."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        path, what = res.path(namespace, name), _what("delete", res, name, namespace)
        try:
            await self._json(ApiCall(method="DELETE", path=path, what=what, body=options))
        except NotFound:
            if not missing_ok:
                raise

    async def watch(
        self,
        res: ApiResource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        stream_seconds: int = STREAM_SECONDS,
        inactivity_seconds: float = INACTIVITY_SECONDS,
        on_error: Callable[[KubeError], None] | None = None,
    ) -> AsyncGenerator[WatchEvent]:
        """Endless events: ADDED for each existing object, SYNCED, then changes. Failures are logged and retried."""
        options = WatchOptions(
            resource=res,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            stream_seconds=stream_seconds,
            inactivity_seconds=inactivity_seconds,
            retry=self._transport.retry,
            on_error=on_error,
        )
        async with aclosing(Watcher(self._transport, options).events()) as events:
            async for event in events:
                yield event

    async def logs(
        self,
        name: str,
        namespace: str,
        container: str = "",
        *,
        tail_lines: int | None = None,
        previous: bool = False,
    ) -> str:
        """Log of a pod's container; `previous` is that of the process before the last restart."""
        wanted = {
            "container": container,
            "tailLines": "" if tail_lines is None else str(tail_lines),
            "previous": "true" if previous else "",
        }
        return await self._transport.send(
            ApiCall(
                method="GET",
                path=f"/api/v1/namespaces/{namespace}/pods/{name}/log",
                what=f"get the log of Pod {namespace}/{name}",
                params={key: value for key, value in wanted.items() if value},
                accept="*/*",
            )
        )

    async def raw(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> str:
        """Text of any other call, such as GET /readyz or POST of a SubjectAccessReview."""
        call = ApiCall(
            method=method, path=path, what=f"{method} {path}", body=body, accept=accept, content_type=content_type
        )
        return await self._transport.send(call)

    async def _json(self, call: ApiCall) -> dict[str, Any]:
        text = await self._transport.send(call)
        body: dict[str, Any] = json.loads(text)
        return body


def _target(body: Mapping[str, Any]) -> tuple[ApiResource, str, str | None]:
    metadata = body["metadata"]
    return resource_of(body), str(metadata.get("name", "")), metadata.get("namespace")


def _what(verb: str, res: ApiResource, name: str, namespace: str | None) -> str:
    where = f"{namespace}/{name}" if res.namespaced and namespace else name
    return f"{verb} {res.kind} {where}"
