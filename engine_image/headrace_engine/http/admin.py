"""`/admin/config` shows the config and changes hot knobs and the SLO set; `/admin/explain` explains one request.

On a separate port, behind a token.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import ConfigError, ConfigProblem, EngineConfig, reconfigure
from headrace_core.knobs.table import KNOBS, Knob
from headrace_engine import device as devices
from headrace_engine.engine import Engine
from headrace_engine.http.calls import CallRegistry, HttpCall
from headrace_engine.http.errors import ApiError, invalid
from headrace_engine.http.limits import too_large
from headrace_engine.http.state import ServerState
from headrace_engine.loop.config_state import (
    UNCHANGED,
    ConfigRefusedError,
    StaleGenerationError,
    Unchanged,
)

MAX_BODY_BYTES = 1 << 20
MAX_REVISION = 256


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


class ConfigPatch(BaseModel):
    """A change of hot knobs (by snake_case name), SLO set (null removes it) and revision, applied as a whole or not."""

    model_config = ConfigDict(extra="forbid", strict=True)
    knobs: dict[str, Any] = {}
    slo: dict[str, Any] | None = None
    revision: Annotated[str, Field(max_length=MAX_REVISION), AfterValidator(_printable)] | None = None
    if_generation: int | None = None


def admin_routes(state: ServerState, *, token: str | None, loopback: bool) -> list[Route]:
    """The admin routes. Without a token they answer only on loopback."""

    async def read(_: Request) -> dict[str, Any]:
        return _describe(state.loaded())

    async def change(request: Request) -> dict[str, Any]:
        engine = state.loaded()
        patch = _parse(await request.body())
        slo = _slo(patch, engine.loop.state.config)
        try:
            await engine.loop.reconfigure(
                patch.knobs, revision=patch.revision, if_generation=patch.if_generation, slo=slo
            )
        except StaleGenerationError as error:
            raise ApiError(409, str(error), param="if_generation", code="stale_generation") from error
        except ConfigRefusedError as error:
            raise _refusal(error.problems) from error
        return _describe(engine)

    async def explain(request: Request) -> dict[str, Any]:
        name = request.query_params.get("request", "")
        if not name:
            raise invalid("name the request: /admin/explain?request=ID", param="request")
        return await _explain(state.loaded(), state.calls, name)

    def guarded(handler: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            _authorize(request.headers, token=token, loopback=loopback)
            return JSONResponse(await handler(request))

        return answer

    return [
        Route("/admin/config", guarded(read), methods=["GET"]),
        Route("/admin/config", guarded(change), methods=["PATCH"]),
        Route("/admin/explain", guarded(explain), methods=["GET"]),
    ]


def _authorize(headers: Headers, *, token: str | None, loopback: bool) -> None:
    if token is None:
        if loopback:
            return
        raise ApiError(
            403, "the admin routes are off: the server is not on loopback and has no token; start it with "
            "--admin-token-file or HEADRACE_ADMIN_TOKEN",
            kind="permission_error", code="admin_off",
        )  # fmt: skip
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), token.encode()):
        raise ApiError(
            401, "the admin routes need the header Authorization: Bearer TOKEN with this server's token",
            kind="authentication_error", code="bad_token", headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


def _parse(raw: bytes) -> ConfigPatch:
    if len(raw) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    try:
        return ConfigPatch.model_validate(json.loads(raw, parse_constant=_refuse_constant))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise invalid(f"{where}: {first['msg']}", param=where) from error
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _slo(patch: ConfigPatch, config: EngineConfig) -> SloSet | Unchanged | None:
    """The SLO set that a patch asks for. Raises `ApiError` 422 with its problem and those of the knobs."""
    if "slo" not in patch.model_fields_set:
        return UNCHANGED
    try:
        return None if patch.slo is None else SloSet.from_dict(patch.slo)
    except ValueError as error:
        problems = [ConfigProblem("slo", str(error).removeprefix("slo: "))]
    try:
        reconfigure(config, patch.knobs)
    except ConfigError as error:
        problems += error.problems
    raise _refusal(problems)


def _refusal(problems: Sequence[ConfigProblem]) -> ApiError:
    listed = [{"knob": problem.knob, "message": problem.message} for problem in problems]
    return ApiError(
        422, "; ".join(str(problem) for problem in problems), param=problems[0].knob, code="config_refused",
        extra={"problems": listed},
    )  # fmt: skip


def _describe(engine: Engine) -> dict[str, Any]:
    state = engine.loop.state
    return {
        "generation": state.generation,
        "revision": state.revision,
        "config": state.config.values(),
        "knobs": [
            _knob(knob, getattr(state.config, knob.name), state.config.ceilings.get(knob.name)) for knob in KNOBS
        ],
        "device": engine.model.device.type,
        "dtype": devices.dtype_name(engine.model.dtype),
        "attention_backend": engine.runner.backend.name,
        "pretend_gpu": devices.pretends_gpu(),
        "started_at": engine.started_at,
        "slo": None if state.slo is None else state.slo.to_dict(),
    }


def _knob(knob: Knob, value: object, ceiling: int | None) -> dict[str, Any]:
    return {
        "name": knob.name, "class": str(knob.klass), "value": value, "default": knob.default, "minimum": knob.minimum,
        "maximum": knob.maximum, "below": knob.below, "choices": list(knob.choices), "ceiling": ceiling,
        "unit": knob.unit, "doc": knob.doc,
    }  # fmt: skip


async def _explain(engine: Engine, calls: CallRegistry, name: str) -> dict[str, Any]:
    """Every generation that `name` refers to, and the calls that started them. Raises `ApiError` 404."""
    found = calls.find(name)
    ids = [item.id for call in found for item in call.generations]
    explained = [await _of_scheduler(engine, each) for each in ([name] if name in ids else ids or [name])]
    generations = [item for item in explained if item is not None]
    if not found and not generations:
        raise ApiError(
            404, f"no request {name!r} is known: use the engine's id (such as cmpl-…-0), the id in the answer's body, "
            "or its x-request-id; each pod knows only its own last 1024",
            param="request", code="request_not_found",
        )  # fmt: skip
    return {"request": name, "calls": [_call(call) for call in found], "generations": generations}


async def _of_scheduler(engine: Engine, request_id: str) -> Mapping[str, Any] | None:
    explanation = await engine.loop.explain(request_id)
    return None if explanation is None else explanation.to_dict() | {"sentences": list(explanation.sentences())}


def _call(call: HttpCall) -> dict[str, Any]:
    return {
        "request_id": call.request_id, "call_id": call.call_id, "method": call.method, "path": call.path,
        "status": call.status or None, "seconds": call.seconds, "ttft": call.ttft, "key": call.key,
        "client": call.client, "generation": call.config_generation, "revision": call.revision,
        "prompt_tokens": call.prompt_tokens, "cached_tokens": call.cached_tokens, "output_tokens": call.output_tokens,
        "finish_reasons": call.finish_reasons, "generations": [item.id for item in call.generations],
    }  # fmt: skip
