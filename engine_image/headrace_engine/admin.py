"""`/admin/config`: the effective config, and its hot knobs changed live. On a port of its own, behind a token."""

from __future__ import annotations

import json
import secrets
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from headrace_core.config import KNOBS, Knob
from headrace_core.slo import SloSet
from headrace_engine import device as devices
from headrace_engine.engine import Engine
from headrace_engine.http_errors import ApiError, invalid
from headrace_engine.loop import RefusedError, StaleGenerationError
from headrace_engine.state import ServerState

MAX_BODY_BYTES = 1 << 20


class ConfigPatch(BaseModel):
    """A change of hot knobs, by snake_case name; all or none."""

    model_config = ConfigDict(extra="forbid", strict=True)
    knobs: dict[str, Any] = {}
    revision: str | None = None
    if_generation: int | None = None


def admin_router(state: ServerState, *, token: str | None, loopback: bool, slo: SloSet | None) -> APIRouter:
    """The admin routes. Without a token they answer only on loopback."""

    async def allowed(request: Request) -> None:
        _authorize(request.headers.get("authorization"), token=token, loopback=loopback)

    router = APIRouter(dependencies=[Depends(allowed)])

    @router.get("/admin/config")
    async def read() -> dict[str, Any]:
        return _describe(state.loaded(), slo)

    @router.patch("/admin/config")
    async def change(request: Request) -> dict[str, Any]:
        engine = state.loaded()
        patch = _parse(await request.body())
        try:
            await engine.loop.reconfigure(patch.knobs, revision=patch.revision, if_generation=patch.if_generation)
        except StaleGenerationError as error:
            raise ApiError(409, str(error), param="if_generation", code="stale_generation") from error
        except RefusedError as error:
            problems = [{"knob": problem.knob, "message": problem.message} for problem in error.problems]
            raise ApiError(
                422, str(error), param=problems[0]["knob"], code="config_refused", extra={"problems": problems}
            ) from error
        return _describe(engine, slo)

    return router


def _authorize(header: str | None, *, token: str | None, loopback: bool) -> None:
    if token is None:
        if loopback:
            return
        raise ApiError(
            403, "the admin routes are off: the server is not on loopback and has no token; start it with "
            "--admin-token-file or HEADRACE_ADMIN_TOKEN",
            kind="permission_error", code="admin_off",
        )  # fmt: skip
    scheme, _, given = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), token.encode()):
        raise ApiError(
            401, "the admin routes need the header Authorization: Bearer TOKEN with this server's token",
            kind="authentication_error", code="bad_token", headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


def _parse(raw: bytes) -> ConfigPatch:
    if len(raw) > MAX_BODY_BYTES:
        raise ApiError(413, f"the body exceeds {MAX_BODY_BYTES} bytes")
    try:
        return ConfigPatch.model_validate(json.loads(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise invalid(f"{where}: {first['msg']}", param=where) from error
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from error


def _describe(engine: Engine, slo: SloSet | None) -> dict[str, Any]:
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
        "pretend_gpu": devices.pretends_gpu(),
        "started_at": engine.started_at,
        "slo": None if slo is None else slo.to_dict(),
    }


def _knob(knob: Knob, value: object, ceiling: int | None) -> dict[str, Any]:
    return {
        "name": knob.name, "class": str(knob.klass), "value": value, "default": knob.default, "minimum": knob.minimum,
        "maximum": knob.maximum, "below": knob.below, "choices": list(knob.choices), "ceiling": ceiling,
        "unit": knob.unit, "doc": knob.doc,
    }  # fmt: skip
