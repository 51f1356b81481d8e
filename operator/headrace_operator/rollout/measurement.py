"""What a rollout asks of the metrics: Prometheus, or a double in tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import WindowReading


class WindowMetrics(Protocol):
    """One window of some pods, and their queues."""

    async def read(self, query: WindowQuery, *, now: datetime) -> WindowReading:
        """What the window showed, or why that cannot be said (yet)."""

    async def waiting(self, namespace: str, pods: Sequence[str]) -> float | None:
        """Requests in the queues of some pods now, by pod name; None where that is not known."""
