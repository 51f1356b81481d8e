"""What can stop a reconcile, by what is to be done about it."""

from __future__ import annotations

from headrace_api.v1alpha1.conditions import Reason


class SpecRefusedError(ValueError):
    """What a person wrote cannot be done. It becomes a condition, never a retry."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class NameTakenError(RuntimeError):
    """A child's name belongs to an object that is not ours. Nothing was written."""
