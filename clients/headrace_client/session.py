"""Base of the small HTTP clients: a session that is given to them, or made at first use and closed by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp


class HttpClient:
    """Base of a client of one address; an async context manager. A session given from outside is left open."""

    def __init__(self, url: str, *, session: aiohttp.ClientSession | None = None, timeout: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._given = session
        self._own: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session that was made here."""
        if self._own is not None:
            await self._own.close()
            self._own = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = aiohttp.ClientSession(timeout=self._timeout)
        return self._own


def json_object(text: str) -> Mapping[str, Any]:
    """The JSON object in `text`, or an empty one if it is something else, such as a proxy's error page."""
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}
