"""One HTTP exchange with the API server: retries, back-off, and Status objects turned into typed errors.

The REST layer of `kubernetes.aio` sends the calls. Its dynamic client is not used: it would ask the server for its
list of resources first, and `headrace_client.resources` knows the paths. Its retries don't cover PATCH.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from headrace_client.connection import Connection, Credentials
from headrace_client.errors import Cause, Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable

CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError)

_ERRORS: Mapping[int, type[KubeError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Unavailable,
}


# Server-side apply answers 500 to a field of the wrong type or a key given twice: the object is wrong, not the server.
_MISTYPED_APPLY = "failed to create typed patch object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how long to wait. Times in seconds; `sleep` is injected by tests."""

    attempts: int = 5
    base: float = 0.2
    cap: float = 10.0
    retry_after_cap: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def delay(self, attempt: int, retry_after: float | None = None) -> float:
        """Wait after failed attempt number `attempt` (from 0); the server's Retry-After wins if there is one."""
        if retry_after is not None:
            return min(retry_after, self.retry_after_cap)
        return min(self.base * 2.0 ** min(attempt, 30), self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One request. `what` is verb and object for error messages, such as `apply ConfigMap a/b`."""

    method: str
    path: str
    what: str
    params: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    # A create whose answer got lost may have happened: it is only retried if it certainly did not.
    repeatable: bool = True


class Transport:
    """Sends calls over one session. `headers` are added to each call."""

    def __init__(
        self, connection: Connection, *, retry: Retry, timeout: float, headers: Mapping[str, str] | None = None
    ) -> None:
        self.connection = connection
        self.retry = retry
        self.server = ""
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._headers = dict(headers or {})
        self._open = False
        self._client: Any = None
        self._retired: Any = None
        self._tls = b""

    async def open(self) -> None:
        """Sign in. Raises `KubeconfigError`."""
        self._open = True
        await self._client_for(await self.connection.credentials())

    async def close(self) -> None:
        """Close the sessions."""
        self._open = False
        for client in (self._client, self._retired):
            if client is not None:
                await client.close()
        self._client = self._retired = None

    @asynccontextmanager
    async def exchange(
        self, call: ApiCall, *, limits: aiohttp.ClientTimeout | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """One answer, whatever its status. Retries only once, with renewed credentials after a 401."""
        if not self._open:
            raise RuntimeError("use `async with Kube(...) as kube`: the client is not open")
        credentials = await self.connection.credentials()
        response = await self._request(call, credentials, limits)
        if response.status == HTTPStatus.UNAUTHORIZED and await self._renewed(credentials, response):
            response = await self._request(call, await self.connection.credentials(), limits)
        try:
            yield response
        finally:
            response.release()

    async def _renewed(self, credentials: Credentials, response: aiohttp.ClientResponse) -> bool:
        await response.read()  # so that it can be quoted, and the connection is free again
        return await self.connection.refused(credentials)

    async def _request(
        self, call: ApiCall, credentials: Credentials, limits: aiohttp.ClientTimeout | None
    ) -> aiohttp.ClientResponse:
        client = await self._client_for(credentials)
        headers = {"Accept": call.accept, **self._headers, **credentials.headers()}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        method, url, headers, body, _ = await client.param_serialize(
            call.method, call.path, query_params=call.params, header_params=headers, body=call.body
        )
        answer = await client.call_api(method, url, headers, body, _request_timeout=limits or self._timeout)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _client_for(self, credentials: Credentials) -> Any:
        """The client with these certificates. An open connection keeps the certificate that it was opened with."""
        if self._client is None or credentials.tls != self._tls:
            credentials.ssl_context()  # raises an error that names the server
            before, self._retired = self._retired, self._client
            self._client = ApiClient(credentials.configuration)
            self._client.user_agent = "headrace"
            self.server, self._tls = credentials.configuration.host, credentials.tls
            if before is not None:
                await before.close()
        return self._client

    async def send(self, call: ApiCall) -> str:
        """Text of the answer. Raises the `KubeError` of the last attempt."""
        for attempt in range(self.retry.attempts):
            failure, retry_after, again = await self._attempt(call)
            if isinstance(failure, str):
                return failure
            if not again or attempt + 1 == self.retry.attempts:
                raise failure
            await self.retry.sleep(self.retry.delay(attempt, retry_after))
        raise AssertionError("attempts must be at least 1")

    async def _attempt(self, call: ApiCall) -> tuple[str | KubeError, float | None, bool]:
        """Text, or the error with the server's Retry-After and whether another attempt makes sense."""
        try:
            async with self.exchange(call) as response:
                text = await response.text()
                if response.status < HTTPStatus.BAD_REQUEST:
                    return text, None, False
                error = error_of(call.what, response.status, text)
                return error, _retry_after(response), _worth_retrying(error, call)
        except CONNECTION_ERRORS as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            return unreachable(self.server, call.what, error), None, call.repeatable or not sent


def _worth_retrying(error: KubeError, call: ApiCall) -> bool:
    if error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return True
    return isinstance(error, Unavailable) and call.repeatable


def unreachable(server: str, what: str, error: BaseException) -> Unavailable:
    """The error of a call that got no answer."""
    why = str(error) or type(error).__name__
    return Unavailable(f"{what}: no answer from the API server {server}: {why}")


def error_of(what: str, status: int, text: str) -> KubeError:
    """The typed error of an answer; `text` is a Status object or whatever a proxy in between wrote."""
    body = _status_object(text)
    details = body.get("details") or {}
    causes = [Cause(item.get("field", ""), item.get("message", "")) for item in details.get("causes") or []]
    message = body.get("message") or text.strip()[:500] or f"HTTP {status}"
    kind = _ERRORS.get(status, Unavailable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else KubeError)
    if _MISTYPED_APPLY in message:
        kind = Invalid
    return kind(f"{what}: {message}", status=status, reason=body.get("reason", ""), causes=causes)


def _status_object(text: str) -> Mapping[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
