"""Calls to running engines, over one shared HTTP session."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from headrace_client.engine import EngineAdmin, EngineState, Keep, SloValues, admin_url
from headrace_client.errors import EngineCallError, EngineUnavailable
from headrace_core.knobs.table import KnobValue

ADMIN_SECONDS = 5.0
TOKEN_SECONDS = 15.0  # behind a queue one token takes a while


class Engines:
    """See `ports.EnginesPort`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def read(self, address: str, *, token: str) -> EngineState:
        """Config in force of the pod at `address`."""
        return await self._admin(address, token).get_config()

    async def change(
        self, address: str, *, token: str, knobs: Mapping[str, KnobValue], slo: SloValues | Keep | None, revision: str,
        generation: int,
    ) -> EngineState:  # fmt: skip
        """Change hot knobs and the SLO set, all or none."""
        admin = self._admin(address, token)
        return await admin.patch_config(knobs, revision=revision, if_generation=generation, slo=slo)

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
