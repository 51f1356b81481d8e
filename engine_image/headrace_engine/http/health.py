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


def health_router(state: ServerState) -> APIRouter:
    """The routes that probes and Prometheus ask."""
    router = APIRouter()

    @router.get("/health/startup")
    async def startup() -> JSONResponse:
        return _answer(None if state.engine is not None else "the model is still loading")

    @router.get("/health")
    @router.get("/ping")
    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        return _answer(state.not_ready())

    @router.get("/health/live")
    async def live() -> JSONResponse:
        return _answer(state.not_live())

    @router.get("/metrics")
    async def metrics() -> Response:
        body = b"" if state.engine is None else state.engine.metrics.render()
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @router.get("/version")
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
