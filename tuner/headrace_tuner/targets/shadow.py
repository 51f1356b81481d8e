"""The engine that trials run on: sets its knobs through the admin port, reads its queue from /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from headrace_client import prom_text
from headrace_client.engine import EngineAdmin, EngineState
from headrace_client.errors import EngineCallError, EngineDenied, EngineRefused, EngineUnavailable
from headrace_core import metric_names as metrics
from headrace_core.evidence.windows import VoidKind
from headrace_core.knobs.table import KnobValue
from headrace_tuner.errors import TrialVoid, TunerError
from headrace_tuner.targets.base import KnobsRefused

POLL_SECONDS = 0.2


class ShadowTarget:
    """A trial pod, or an engine started by hand. The tuner is its only client."""

    def __init__(
        self, url: str, admin: EngineAdmin, *, session: aiohttp.ClientSession, patience: float = 180.0
    ) -> None:
        self._url = url.rstrip("/")
        self._admin = admin
        self._session = session
        self._patience = patience  # seconds for an engine to come back: a restarted pod loads its model again

    @property
    def url(self) -> str:
        """Where completions are requested."""
        return self._url

    async def state(self) -> EngineState:
        """See `TrialTarget`."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                return await self._admin.get_config()
            except EngineUnavailable as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise TunerError(f"the engine has not answered for {self._patience:.0f} s: {error}") from error
            except EngineDenied as error:
                raise TunerError(f"{error}; give the engine's admin token in HEADRACE_ADMIN_TOKEN") from error
            except EngineCallError as error:
                raise TunerError(str(error)) from error
            await asyncio.sleep(1.0)

    async def apply(self, knobs: Mapping[str, KnobValue], *, revision: str) -> EngineState:
        """See `TrialTarget`."""
        try:
            return await self._admin.patch_config(knobs, revision=revision)
        except EngineRefused as error:
            raise KnobsRefused("; ".join(map(str, error.problems)) or str(error)) from error
        except EngineDenied as error:
            raise TunerError(f"{error}; give the engine's admin token in HEADRACE_ADMIN_TOKEN") from error
        except EngineCallError as error:
            raise TrialVoid(VoidKind.RESTARTED, f"the engine did not take the knobs: {error}") from error

    async def settle(self, timeout: float) -> None:  # noqa: ASYNC109
        """See `TrialTarget`."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            running, waiting = await self._queue()
            if running == 0 and waiting == 0:
                return
            if asyncio.get_running_loop().time() >= deadline:
                raise TrialVoid(
                    VoidKind.DISTURBED,
                    f"the engine did not become idle within {timeout:.0f} s: {running:g} running, {waiting:g} waiting; "
                    "is anything else sending it requests?",
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _queue(self) -> tuple[float, float]:
        where = f"{self._url}/metrics"
        try:
            async with self._session.get(where, timeout=aiohttp.ClientTimeout(total=10)) as response:
                response.raise_for_status()
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise TrialVoid(VoidKind.RESTARTED, f"GET {where}: no answer: {why}") from error
        return gauge(text, metrics.RUNNING.series), gauge(text, metrics.WAITING.series)


def gauge(exposition: str, name: str) -> float:
    """Sum of a metric's series in a Prometheus text. Raises `TunerError` if there is none: absent is not zero."""
    found = prom_text.total(exposition, name)
    if found is None:
        raise TunerError(f"/metrics has no {name}: this is not a Headrace engine, or it is an older version")
    return found
