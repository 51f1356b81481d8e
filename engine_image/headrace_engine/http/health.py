"""`/health/startup|ready|live`, `/health` and `/ping` as vLLM has them, `/metrics`, `/version`."""

from __future__ import annotations

import sys
from typing import Any

import prometheus_client
import torch
import transformers
from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from headrace_engine.http.state import ServerState
from headrace_engine.version import VERSION

#: Load balancers ask by HEAD as often as by GET.
READ = ["GET", "HEAD"]


def health_router(state: ServerState) -> APIRouter:
    """The routes that probes and Prometheus ask."""
    router = APIRouter()

    @router.api_route("/health/startup", methods=READ)
    async def startup() -> JSONResponse:
        return _answer(None if state.engine is not None else "the model is still loading")

    @router.api_route("/health", methods=READ)
    @router.api_route("/ping", methods=READ)
    @router.api_route("/health/ready", methods=READ)
    async def ready() -> JSONResponse:
        return _answer(state.not_ready())

    @router.api_route("/health/live", methods=READ)
    async def live() -> JSONResponse:
        return _answer(state.not_live())

    @router.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        body = b"" if state.engine is None else state.engine.metrics.render()
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @router.api_route("/version", methods=READ)
    async def version() -> dict[str, Any]:
        return {
            "version": VERSION, "torch": torch.__version__, "transformers": transformers.__version__,
            "python": sys.version.split()[0],
        }  # fmt: skip

    return router


def _answer(problem: str | None) -> JSONResponse:
    if problem is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": problem}, status_code=503)
