"""Who watches a scheduler: told of what happens to each request, when it happens. Nothing is decided here."""

from __future__ import annotations

from typing import Protocol

from headrace_core.scheduler.events import FinishReason
from headrace_core.scheduler.planning import StepBuilder
from headrace_core.scheduler.sequence import Sequence


class SchedulerObserver(Protocol):
    """Called by the scheduler, in order. Times are of the driver's clock and never go back."""

    def joined(self, seq: Sequence) -> None:
        """A request was queued."""

    def planned(self, builder: StepBuilder, now: float) -> None:
        """A step was planned: its rows, its preemptions, and why the others are not in it."""

    def unforked(self, seq: Sequence, *, planned_at: float) -> None:
        """The step in which a fork started failed for its sibling: the fork has not started."""

    def first_token(self, seq: Sequence, now: float) -> None:
        """The first token was sampled."""

    def requeued(self, seq: Sequence, now: float) -> None:
        """A fork that was waiting for its sibling joined the queue."""

    def ended(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """The request is over."""


class Unobserved:
    """The `SchedulerObserver` of a scheduler that nobody asks: a simulator's, say."""

    def joined(self, seq: Sequence) -> None:
        """Not noted."""

    def planned(self, builder: StepBuilder, now: float) -> None:
        """Not noted."""

    def unforked(self, seq: Sequence, *, planned_at: float) -> None:
        """Not noted."""

    def first_token(self, seq: Sequence, now: float) -> None:
        """Not noted."""

    def requeued(self, seq: Sequence, now: float) -> None:
        """Not noted."""

    def ended(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """Not noted."""
