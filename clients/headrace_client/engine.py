"""The engine's admin port: read the config in force, change hot knobs, ask what happened to a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

import aiohttp

from headrace_api import names
from headrace_client.errors import (
    EngineCallError,
    EngineDenied,
    EngineRefused,
    EngineUnavailable,
    KnobProblem,
    StaleGeneration,
)
from headrace_client.session import HttpClient, json_object

KnobValue = int | float | bool | str | None
SloValues = Mapping[str, float | None]


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "keep"


KEEP = Keep.KEEP  # leaves the SLO set as it is, whereas None removes it
PATH = "/admin/config"
EXPLAIN_PATH = "/admin/explain"


def admin_url(address: str) -> str:
    """Base URL of the admin port of the engine pod at an IP address."""
    return f"http://{f'[{address}]' if ':' in address else address}:{names.ADMIN_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The config in force. `config` by snake_case name; (`started_at`, `generation`) is its identity.

    `started_at` in Unix seconds. `knobs` are the rows of the knob table as the engine reports them.
    """

    generation: int
    revision: str
    config: Mapping[str, KnobValue]
    knobs: tuple[Mapping[str, Any], ...]
    device: str
    dtype: str
    pretend_gpu: bool
    started_at: float
    slo: SloValues | None

    def ceiling(self, knob: str) -> int | None:
        """Boot value that a capped knob cannot exceed while the engine runs; None for other knobs."""
        row = next((item for item in self.knobs if item.get("name") == knob), {})
        value = row.get("ceiling")
        return None if value is None else int(value)


class EngineAdmin(HttpClient):
    """Client of one engine's admin port. Every method raises `EngineCallError` or a subclass of it."""

    def __init__(
        self, url: str, token: str = "", *, session: aiohttp.ClientSession | None = None, timeout: float = 10.0
    ) -> None:
        super().__init__(url, session=session, timeout=timeout)
        self._token = token

    async def get_config(self) -> EngineState:
        """The config in force."""
        return await self._call("GET", None)

    async def patch_config(
        self, knobs: Mapping[str, KnobValue], revision: str | None = None, if_generation: int | None = None, *,
        slo: SloValues | Keep | None = KEEP,
    ) -> EngineState:  # fmt: skip
        """Set hot knobs and the SLO set, all or none; they are in force when this returns.

        Raises `EngineRefused`, or `StaleGeneration` if the generation is no longer `if_generation`.
        """
        body: dict[str, Any] = {"knobs": dict(knobs)}
        if revision is not None:
            body["revision"] = revision
        if if_generation is not None:
            body["if_generation"] = if_generation
        if slo is not KEEP:
            body["slo"] = slo
        return await self._call("PATCH", body)

    async def explain(self, request: str) -> Mapping[str, Any]:
        """What happened to a request: its `calls` and their `generations`. `request` is any of its ids."""
        where, text = await self._ask("GET", EXPLAIN_PATH, query={"request": request})
        answer = json_object(text)
        if not isinstance(answer.get("generations"), list):
            raise EngineCallError(f"{where}: not an engine's answer: {text[:300]}")
        return answer

    async def _call(self, method: str, body: Mapping[str, Any] | None) -> EngineState:
        where, text = await self._ask(method, PATH, body=body)
        try:
            return _state(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise EngineCallError(f"{where}: not an engine's answer: {error!r}") from error

    async def _ask(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """The name of the call for messages, and the answer's text."""
        where = f"{method} {self.url}{path}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            async with self._session.request(
                method, self.url + path, json=body, params=query, headers=headers, timeout=self._timeout
            ) as response:
                text, status = await response.text(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"{where}: no answer: {str(error) or type(error).__name__}") from error
        if status != HTTPStatus.OK:
            raise _error(where, status, text)
        return where, text


def _state(body: Mapping[str, Any]) -> EngineState:
    return EngineState(
        generation=int(body["generation"]),
        revision=str(body["revision"]),
        config=dict(body["config"]),
        knobs=tuple(body["knobs"]),
        device=str(body["device"]),
        dtype=str(body["dtype"]),
        pretend_gpu=bool(body["pretend_gpu"]),
        started_at=float(body["started_at"]),
        slo=body.get("slo"),
    )


def _error(where: str, status: int, text: str) -> EngineCallError:
    body = json_object(text)
    error = body.get("error")
    message = error.get("message") if isinstance(error, Mapping) else None
    what = f"{where}: HTTP {status}: {message or text[:300]}"
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        problems = [KnobProblem(str(item["knob"]), str(item["message"])) for item in body.get("problems") or []]
        return EngineRefused(what, problems)
    if status == HTTPStatus.CONFLICT:
        return StaleGeneration(what)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return EngineDenied(what)
    return EngineUnavailable(what) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else EngineCallError(what)
