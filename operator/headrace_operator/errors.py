"""What a person has to correct before a reconcile can go on."""

from __future__ import annotations

from headrace_api.v1alpha1.conditions import Reason
from headrace_core.errors import HeadraceError


class SpecRefusedError(HeadraceError):
    """What a person wrote cannot be done. It becomes a condition, never a retry."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
