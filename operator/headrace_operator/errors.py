"""Errors in a spec that a person has to correct before a reconcile can continue."""

from __future__ import annotations

from headrace_api.v1alpha1.conditions import Reason
from headrace_core.errors import HeadraceError


class SpecRefusedError(HeadraceError):
    """A spec asks for something that cannot be done. It becomes a condition and is never retried."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
