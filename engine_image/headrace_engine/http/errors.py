"""OpenAI's error body, and the mapping of every error of the engine to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from headrace_core.scheduler.events import Rejected, RejectReason
from headrace_engine.http.calls import CLIENT_CLOSED, current_call
from headrace_engine.loop.inbox import EngineDeadError
from headrace_engine.loop.live_request import RejectedError

log = logging.getLogger(__name__)
INVALID = "invalid_request_error"


class ApiError(Exception):
    """Answered as `{"error": {message, type, param, code}}` with `status`."""

    def __init__(
        self, status: int, message: str, *, kind: str = INVALID, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self.body.update(extra or {})
        self.headers = dict(headers or {})


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 whose `param` names the field at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, retry_after: int) -> ApiError:
    """A 503 with Retry-After in seconds."""
    return ApiError(
        503, message, kind="service_unavailable", code="unavailable", headers={"Retry-After": str(retry_after)}
    )


def failed(message: str) -> ApiError:
    """A 500 for a request that failed in the engine."""
    return ApiError(500, message, kind="server_error", code="engine_error")


def unexpected(error: Exception) -> ApiError:
    """500 for a bug: the client sees the exception's type, the log has the rest."""
    return failed(f"unexpected {type(error).__name__} in the server; its log has the details")


def from_rejected(rejected: Rejected) -> ApiError:
    """The scheduler's rejection as a 429 for a full queue, else a 400."""
    if rejected.reason is RejectReason.QUEUE_FULL:
        seconds = max(1, round(rejected.retry_after or 1))
        return ApiError(
            429, rejected.message, kind="rate_limit_error", code="queue_full", headers={"Retry-After": str(seconds)}
        )
    codes = {RejectReason.TOO_LONG: "context_length_exceeded", RejectReason.NEVER_FITS: "context_length_exceeded"}
    return invalid(rejected.message, param="prompt", code=codes.get(rejected.reason, str(rejected.reason)))


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """An app of these routes that answers every error with OpenAI's body."""
    handlers = {
        ApiError: _api_error, RejectedError: _rejected, EngineDeadError: _dead, HTTPException: _http_exception,
        ClientDisconnect: _gone, Exception: _unexpected,
    }  # fmt: skip
    return Starlette(routes=routes, exception_handlers=handlers)


def answer(error: ApiError) -> JSONResponse:
    """The response for `error`; the access log learns its code."""
    if (call := current_call()) is not None:
        call.error = error.body["error"]["code"] or error.body["error"]["type"]
    return _ErrorResponse(error.body, status_code=error.status, headers=error.headers)


class _ErrorResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        """As UTF-8 JSON; escaped to ASCII if the message quotes a lone surrogate that a client sent."""
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content).encode()


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)  # noqa: S101  (registered for this type)
    return answer(error)


async def _rejected(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RejectedError)  # noqa: S101
    return answer(from_rejected(error.rejected))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _dead(_: Request, error: Exception) -> JSONResponse:
    return answer(unavailable(str(error), retry_after=10))


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    where = f"{request.method} {request.url.path}"
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))  # Starlette has them in no fixed order
    known = {
        404: ("no such route; GET /openapi.json lists those of the serving port", "unknown_route"),
        405: (f"this route takes {headers.get('Allow', 'another method')}", "wrong_method"),
    }
    what, code = known.get(error.status_code, (str(error.detail), "http_error"))
    return answer(ApiError(error.status_code, f"{where}: {what}", headers=headers, code=code))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return answer(unexpected(error))
