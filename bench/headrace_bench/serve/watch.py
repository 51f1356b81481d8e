"""Watches the load client itself: a late event loop mistakes its own delay for the server's.

A heartbeat shows how late the loop runs due callbacks; the CPU time of this process shows how near its one
thread is to its limit.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.evidence.percentiles import Distribution, distribution

BEAT_SECONDS = 0.02
CPU_LIMIT = 0.8  # of one core: beyond, arrivals and chunks queue for the client's thread
LAG_FLOOR, LAG_SHARE = 0.02, 0.1  # seconds, and as a share of the median latency that it would bend


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The client's own health during the load. `cpu_share` is of one core; seconds otherwise."""

    seconds: float
    cpu_share: float
    loop_lag: Distribution | None


@dataclass(slots=True)
class Watch:
    """A running heartbeat."""

    lags: list[float] = field(default_factory=list)
    started: float = 0.0
    cpu: float = 0.0

    def health(self) -> Health:
        """The health so far."""
        seconds = max(1e-9, time.perf_counter() - self.started)
        used = time.process_time() - self.cpu
        return Health(seconds=seconds, cpu_share=used / seconds, loop_lag=distribution(self.lags))

    async def beat(self) -> None:
        """Sleep and record how late each wake-up is, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + BEAT_SECONDS
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            late = loop.time() - due
            # While the loop hung, several beats were due: each would have seen the rest of the hang.
            for missed in range(1 + int(late / BEAT_SECONDS)):
                self.lags.append(late - missed * BEAT_SECONDS)
            due = loop.time() + BEAT_SECONDS


@asynccontextmanager
async def watching() -> AsyncIterator[Watch]:
    """Watch this process inside the context. Existing objects are frozen, so that the garbage collector skips them."""
    gc.collect()
    gc.freeze()
    watch = Watch(started=time.perf_counter(), cpu=time.process_time())
    beating = asyncio.create_task(watch.beat())
    try:
        yield watch
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        gc.unfreeze()


def client_limits(health: Health, records: Sequence[RequestRecord]) -> tuple[str, ...]:
    """Why the client, and not the server, may have determined the measurements; empty if it did not. Pure."""
    ttft = distribution(record.ttft for record in records if record.ttft is not None)
    gaps = distribution(gap for record in records for gap in record.gaps)
    lag = distribution(record.lag for record in records)
    found = []
    if health.cpu_share > CPU_LIMIT:
        found.append(f"the client used {health.cpu_share:.0%} of the one core that it can use")
    if lag and lag.p99 > (limit := _limit(ttft)):
        found.append(f"99 % of requests were sent within {_ms(lag.p99)} of their time; {_ms(limit)} is tolerable")
    if health.loop_lag and health.loop_lag.p99 > (limit := _limit(gaps)):
        found.append(
            f"the client's event loop was up to {_ms(health.loop_lag.p99)} late (99th percentile); "
            f"{_ms(limit)} is tolerable beside the inter-token latency"
        )
    full = sum(record.error == ErrorKind.CLIENT_FULL for record in records)
    if full:
        found.append(f"{full} requests were not sent: too many were under way (--max-in-flight)")
    return tuple(found)


def _limit(latency: Distribution | None) -> float:
    return max(LAG_FLOOR, LAG_SHARE * latency.p50 if latency else 0.0)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if math.isfinite(seconds) else "?"
