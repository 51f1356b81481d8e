"""`WindowMetrics` over Prometheus: one window over the stable pods, each at one config generation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime

from headrace_client.errors import PrometheusError
from headrace_client.prom import Prometheus
from headrace_client.window_reader import read_window, selector
from headrace_core.evidence.counts import side_by_side
from headrace_core.evidence.windows import WindowStats, WindowVoidError
from headrace_core.metric_names import WAITING
from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import (
    WindowMeasured,
    WindowPending,
    WindowReading,
    WindowVoid,
)

WAIT_SECONDS = 1.5  # for a scrape at the window's end; for a longer wait, the next pass reads again
STALE_SECONDS = 90.0  # past the window's end without a scrape: Prometheus does not see the pods


class PrometheusWindows:
    """See `measurement.WindowMetrics`. Without Prometheus every window is void, and the reading says why."""

    def __init__(self, prometheus: Prometheus | None) -> None:
        self._prometheus = prometheus

    async def read(self, query: WindowQuery, *, now: datetime) -> WindowReading:
        """The window's numbers, or why there are none (yet)."""
        if self._prometheus is None:
            return WindowVoid("the operator has no Prometheus: set prometheus.url in the chart's values")
        if now.timestamp() < query.end:
            return WindowPending("the window is open")
        try:
            windows = await asyncio.gather(
                *(self._one(self._prometheus, query, pod) for pod in sorted(query.generations))
            )
        except WindowVoidError as error:
            return WindowVoid(str(error))
        except PrometheusError as error:
            late = now.timestamp() - query.end
            return WindowVoid(f"stale or no metrics: {error}") if late > STALE_SECONDS else WindowPending(str(error))
        return WindowMeasured(combined(windows)) if windows else WindowVoid("no pods to measure")

    async def waiting(self, namespace: str, pods: Sequence[str]) -> float | None:
        """Requests in the queues of some pods as last scraped; None if unknown."""
        if self._prometheus is None:
            return None
        try:
            queues = [
                sample.value
                for pod in pods
                for sample in await self._prometheus.query(
                    selector(WAITING.series, {"namespace": namespace, "pod": pod})
                )
            ]
        except PrometheusError:
            return None
        return sum(queues) if len(queues) >= len(pods) else None

    @staticmethod
    async def _one(prometheus: Prometheus, query: WindowQuery, pod: str) -> WindowStats:
        return await read_window(
            prometheus,
            pods={"namespace": query.namespace, "pod": pod},
            where={"config_generation": str(query.generations[pod])},
            start=query.start,
            end=query.end,
            timeout=WAIT_SECONDS,
        )


def combined(windows: Sequence[WindowStats]) -> WindowStats:
    """One window for all pods: counts add up, the time is the mean, each latency is the worst pod's."""

    def worst(values: Sequence[float]) -> float:
        return max((value for value in values if not math.isnan(value)), default=math.nan)

    return WindowStats(
        counts=side_by_side([window.counts for window in windows]),
        ttft_p50=worst([window.ttft_p50 for window in windows]),
        ttft_p95=worst([window.ttft_p95 for window in windows]),
        ttft_p99=worst([window.ttft_p99 for window in windows]),
        itl_p50=worst([window.itl_p50 for window in windows]),
        itl_p95=worst([window.itl_p95 for window in windows]),
        itl_p99=worst([window.itl_p99 for window in windows]),
        itl_max=worst([window.itl_max for window in windows]),
    )
