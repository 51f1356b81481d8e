"""Prometheus: instant queries at a stated time, raw samples with their own timestamps, waiting for a scrape."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from headrace_client.errors import PrometheusError
from headrace_client.session import HttpClient, json_object

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class PromSample:
    """One value. `timestamp`, in Unix seconds: the time asked for by a plain instant query, or the scrape's time for a
    range selector (`metric[30s]`, `raw`)."""

    labels: Mapping[str, str]
    timestamp: float
    value: float


class Prometheus(HttpClient):
    """Client of one Prometheus. Every method raises `PrometheusError`."""

    async def query(self, expr: str, at: float | None = None) -> list[PromSample]:
        """Instant query, at Unix time `at` or now. A range selector gives every raw sample, oldest first."""
        params = {"query": expr, **({} if at is None else {"time": f"{at:.3f}"})}
        data = await self._get("/api/v1/query", params, expr)
        return _samples(data)

    async def raw(self, selector: str, start: float, end: float) -> list[PromSample]:
        """Samples as scraped in the window `start` to `end`, Unix seconds, both ends included."""
        # A range selector leaves out its left end, hence the extra millisecond.
        length = max(1, round((end - start) * 1000) + 1)
        return await self.query(f"{selector}[{length}ms]", at=end)

    async def wait_for_scrape(self, selector: str, after: float, timeout: float) -> float:  # noqa: ASYNC109
        """Wait until each series of `selector` has a sample from Unix time `after` on. Returns the oldest one's time.

        `timeout` in seconds. Raises `PrometheusError` when it has passed; the message says what was missing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        expr = f"timestamp({selector})"
        state = ""
        while True:
            try:
                times = [sample.value for sample in await self.query(expr)]
                if times and min(times) >= after:
                    return min(times)
                state = f"the oldest is {after - min(times):.1f} s before that" if times else "no series matches"
            except PrometheusError as error:
                state = str(error)
            if loop.time() >= deadline:
                raise PrometheusError(
                    f"{self.url}: no scrape of {selector} at or after {after:.3f} within {timeout:g} s: {state}"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _get(self, path: str, params: Mapping[str, str], expr: str) -> Mapping[str, Any]:
        where = f"{self.url}: query {expr}"
        try:
            async with self._session.get(self.url + path, params=params, timeout=self._timeout) as response:
                text = await response.text()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PrometheusError(f"{where}: no answer: {str(error) or type(error).__name__}") from error
        body = json_object(text)
        if status != HTTPStatus.OK or body.get("status") != "success":
            raise PrometheusError(f"{where}: HTTP {status}: {body.get('error') or text[:300]}")
        data: Mapping[str, Any] = body["data"]
        return data


def _samples(data: Mapping[str, Any]) -> list[PromSample]:
    kind, result = data["resultType"], data["result"]
    if kind == "scalar":
        return [_sample({}, result)]
    if kind == "vector":
        return [_sample(item["metric"], item["value"]) for item in result]
    if kind == "matrix":
        return [_sample(item["metric"], pair) for item in result for pair in item["values"]]
    raise PrometheusError(f"a query gave a {kind}, which is not a number")


def _sample(labels: Mapping[str, str], pair: list[Any]) -> PromSample:
    text = str(pair[1])
    value = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}.get(text)
    return PromSample(labels=dict(labels), timestamp=float(pair[0]), value=float(text) if value is None else value)
