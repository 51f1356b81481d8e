"""What a check found, and how it becomes a condition: one builder for both kinds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headrace_api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether something holds (None: not known), why in a word, and why in a sentence."""

    holds: bool | None
    reason: Reason
    message: str

    def condition(self, type_: ConditionType, *, generation: int, now: datetime) -> Condition:
        """The finding as a condition as of `now`."""
        status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[self.holds]
        return Condition(
            type=type_.value,
            status=status,
            reason=self.reason.value,
            message=self.message,
            observed_generation=generation,
            last_transition_time=now,
        )


def no(reason: Reason, message: str) -> Finding:
    """A finding that something does not hold."""
    return Finding(False, reason, message)


def yes(reason: Reason, message: str) -> Finding:
    """A finding that something holds."""
    return Finding(True, reason, message)
