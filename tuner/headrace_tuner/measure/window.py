"""One measured window: knobs in force, engine idle, warm-up, open-loop window, drain, reading from Prometheus."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import aiohttp

from headrace_api.v1alpha1.records import TimeWindow
from headrace_client.engine import EngineState
from headrace_client.load.client import Endpoint, LoadClient, RequestRecord
from headrace_client.prom import Prometheus
from headrace_core.evidence.windows import VoidKind
from headrace_core.knobs.table import KnobValue
from headrace_core.workload.plans import PlannedRequest, Workload, derive_seed, plan_load
from headrace_tuner.errors import TrialVoid
from headrace_tuner.measure.reading import ClientSide, TrialReading, WindowSpan, read_trial, wait_until_scraped
from headrace_tuner.targets.base import TrialTarget

SETTLE_SECONDS = 60.0
SHORTEST_DRAIN = 10.0  # seconds; the window's length if that is more


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """A window's reading, with its revision and times."""

    window: TimeWindow
    reading: TrialReading


class WindowMeter(Protocol):
    """Measures configs, one window at a time."""

    async def measure(self, knobs: Mapping[str, KnobValue], *, seed: int, label: str) -> MeasuredWindow:
        """Measure one window. Raises `KnobsRefused` if the engine refuses the knobs, `TrialVoid` for a void window."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMeter:
    """The meter for a running engine. `warmup` in seconds; `ttft` is the SLO's threshold in seconds, if it has one."""

    target: TrialTarget
    prometheus: Prometheus
    session: aiohttp.ClientSession
    endpoint: Endpoint
    workload: Workload
    warmup: float
    ttft: float | None

    @property
    def lag_limit(self) -> float:
        """How late 99 % of the requests may be sent, seconds: too little to change the arrivals or use up the SLO."""
        return max(0.05, 0.5 / self.workload.rate, 0.1 * (self.ttft or 0.0))

    @property
    def drain(self) -> float:
        """How long requests may take after the last arrival, seconds; slower ones are misses."""
        return max(SHORTEST_DRAIN, self.workload.duration)

    async def measure(self, knobs: Mapping[str, KnobValue], *, seed: int, label: str) -> MeasuredWindow:
        """See `WindowMeter`."""
        revision = f"{label}-{secrets.token_hex(3)}"  # new even if a killed tuner used the same label
        await self.target.state()
        await self.target.settle(SETTLE_SECONDS)
        await self.target.apply(knobs, revision=f"{revision}-warmup")
        client = self._client(f"{revision}-warmup")
        warm = asyncio.create_task(client.open_loop(self._warm_up(seed), drain=self.warmup + self.drain))
        try:
            await asyncio.gather(asyncio.sleep(self.warmup), wait_until_scraped(self.prometheus, f"{revision}-warmup"))
            early = client.progress.sent - client.progress.first_tokens
            start = _now()
            began = await self.target.apply({}, revision=revision)
            records = await self._client(revision).open_loop(plan_load(self.workload, seed), drain=self.drain)
            await warm
        finally:
            warm.cancel()
            await asyncio.wait([warm])
        await self.target.settle(SETTLE_SECONDS)
        drained = _now()
        await self._check_same(began)
        end = start + self.workload.duration
        span = WindowSpan(revision=revision, generation=began.generation, start=start, end=end, drained=drained)
        return await self._read(span, records, early=early)

    async def _read(self, span: WindowSpan, records: list[RequestRecord], *, early: int) -> MeasuredWindow:
        client = ClientSide(records=records, early=early, lag_limit=self.lag_limit)
        reading = await read_trial(self.prometheus, span, client)
        window = TimeWindow(
            start=datetime.fromtimestamp(span.start, UTC), end=datetime.fromtimestamp(span.drained, UTC)
        )
        return MeasuredWindow(window, reading)

    def _warm_up(self, seed: int) -> tuple[PlannedRequest, ...]:
        workload = replace(self.workload, duration=self.warmup)
        return plan_load(workload, derive_seed(seed, "warmup"))

    def _client(self, salt: str) -> LoadClient:
        return LoadClient(endpoint=self.endpoint, session=self.session, salt=salt)

    async def _check_same(self, began: EngineState) -> None:
        now = await self.target.state()
        if now.started_at != began.started_at:
            raise TrialVoid(VoidKind.RESTARTED, "the engine restarted inside the window")
        if now.generation != began.generation:
            raise TrialVoid(
                VoidKind.DISTURBED,
                f"something else changed the engine's config inside the window: generation {began.generation} became "
                f"{now.generation}",
            )


def _now() -> float:
    return time.time()  # noqa: TID251  (Prometheus and the records need wall-clock time)
