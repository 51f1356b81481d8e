"""One HTTP exchange with the API server: retries, back-off, and Status objects turned into typed errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from headrace_client.connection import Connection
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
        """Wait after failed attempt number `attempt` (from 0); the server's wish counts where it has one."""
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
    # A create whose answer got lost may have happened: it is tried again only where it surely did not.
    repeatable: bool = True


class Transport:
    """Sends calls over one session."""

    def __init__(self, connection: Connection, *, retry: Retry, timeout: float) -> None:
        self.connection = connection
        self.retry = retry
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Create the session."""
        tls = self.connection.ssl
        connector = aiohttp.TCPConnector(limit=100, ssl=True if tls is None else tls)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def start(self, call: ApiCall, *, timeout: aiohttp.ClientTimeout | None = None) -> Any:
        """Async context manager of one exchange, without retries; used by the watch."""
        if self._session is None:
            raise RuntimeError("use `async with Kube(...) as kube`: the client is not open")
        now = asyncio.get_running_loop().time()
        headers = {"Accept": call.accept, **self.connection.headers(now)}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return self._session.request(
            call.method,
            self.connection.server + call.path,
            params=call.params,
            data=None if call.body is None else json.dumps(call.body).encode(),
            headers=headers,
            timeout=timeout or self._timeout,
            server_hostname=self.connection.tls_server_name,
            allow_redirects=False,
        )

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
            async with self.start(call) as response:
                text = await response.text()
                if response.status < HTTPStatus.BAD_REQUEST:
                    return text, None, False
                error = error_of(call.what, response.status, text)
                return error, _retry_after(response), self._worth_retrying(error, call)
        except CONNECTION_ERRORS as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            return unreachable(self.connection, call.what, error), None, call.repeatable or not sent

    def _worth_retrying(self, error: KubeError, call: ApiCall) -> bool:
        if error.status == HTTPStatus.UNAUTHORIZED:
            return self.connection.refused()
        if error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            return True
        return isinstance(error, Unavailable) and call.repeatable


def unreachable(connection: Connection, what: str, error: BaseException) -> Unavailable:
    """The error of a call that got no answer."""
    why = str(error) or type(error).__name__
    return Unavailable(f"{what}: no answer from the API server {connection.server}: {why}")


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
