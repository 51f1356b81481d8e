"""The metrics that a rollout reads: from Prometheus, or from a double in tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import WindowReading


class WindowMetrics(Protocol):
    """Reads windows and queue lengths of some pods."""

    async def read(self, query: WindowQuery, *, now: datetime) -> WindowReading:
        """The window's numbers, or why there are none (yet)."""

    async def waiting(self, namespace: str, pods: Sequence[str]) -> float | None:
        """Requests in the queues of some pods now, by pod name; None if unknown."""
