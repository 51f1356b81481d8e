"""Calls to running Headrace engines, over one shared HTTP session."""

from __future__ import annotations

import aiohttp

from headrace_client.engine import KEEP, EngineAdmin, EngineState, admin_url
from headrace_client.errors import EngineCallError, EngineUnavailable
from headrace_operator.engines.base import ConfigChange, LiveConfigApi, RunningEngine

ADMIN_SECONDS = 5.0
TOKEN_SECONDS = 15.0  # behind a queue one token takes a while


class HeadraceApi:
    """See `EngineApi` and `LiveConfigApi`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @property
    def live(self) -> LiveConfigApi:
        """Hot knobs change between two steps."""
        return self

    async def read(self, address: str, *, token: str) -> RunningEngine:
        """Config in force of the pod at `address`."""
        return running_engine(await self._admin(address, token).get_config())

    async def change(self, address: str, change: ConfigChange, *, token: str) -> RunningEngine:
        """Change hot knobs and the SLO set, all or none."""
        state = await self._admin(address, token).patch_config(
            change.knobs,
            revision=change.revision,
            if_generation=change.if_generation,
            slo=KEEP if change.slo is None else change.slo.slo,
        )
        return running_engine(state)

    async def one_token(self, url: str, *, model: str) -> None:
        """Generate one token through a Service's base URL."""
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        timeout = aiohttp.ClientTimeout(total=TOKEN_SECONDS)
        try:
            async with self._session.post(f"{url}/v1/completions", json=body, timeout=timeout) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise EngineCallError(f"POST {url}/v1/completions: HTTP {answer.status}: {text[:200]}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise EngineUnavailable(f"POST {url}/v1/completions: no answer: {why}") from error

    def _admin(self, address: str, token: str) -> EngineAdmin:
        return EngineAdmin(admin_url(address), token, session=self._session, timeout=ADMIN_SECONDS)


def running_engine(state: EngineState) -> RunningEngine:
    """The admin port's answer in the form that all kinds of engine share."""
    rows = {str(row["name"]): state.ceiling(str(row["name"])) for row in state.knobs}
    return RunningEngine(
        generation=state.generation,
        revision=state.revision,
        config=state.config,
        ceilings={name: ceiling for name, ceiling in rows.items() if ceiling is not None},
        slo=state.slo,
        device=state.device,
        pretend_gpu=state.pretend_gpu,
        started_at=state.started_at,
    )
