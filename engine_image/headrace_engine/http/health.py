"""`/health/startup|ready|live`, `/health` and `/ping` as vLLM has them, `/metrics`, `/version`."""

from __future__ import annotations

import sys

import prometheus_client
import torch
import transformers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace_engine.http.state import ServerState
from headrace_engine.version import VERSION


def health_routes(state: ServerState) -> list[Route]:
    """The routes that probes and Prometheus call."""

    async def startup(_: Request) -> Response:
        return _answer(None if state.engine is not None else "the model is still loading")

    async def ready(_: Request) -> Response:
        return _answer(state.not_ready())

    async def live(_: Request) -> Response:
        return _answer(state.not_live())

    async def metrics(_: Request) -> Response:
        body = b"" if state.engine is None else state.engine.metrics.render()
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def version(_: Request) -> Response:
        return JSONResponse({
            "version": VERSION, "torch": torch.__version__, "transformers": transformers.__version__,
            "python": sys.version.split()[0],
        })  # fmt: skip

    return [
        Route("/health/startup", startup),
        Route("/health/live", live),
        *(Route(path, ready) for path in ("/health/ready", "/health", "/ping")),
        Route("/metrics", metrics),
        Route("/version", version),
    ]


def _answer(problem: str | None) -> JSONResponse:
    if problem is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": problem}, status_code=503)
