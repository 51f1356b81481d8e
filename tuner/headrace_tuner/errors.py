"""Errors of the tuner. Foreign exceptions are mapped to these once, at the I/O edge."""

from __future__ import annotations

from headrace_core.errors import HeadraceError
from headrace_core.evidence.windows import VoidKind


class TunerError(HeadraceError):
    """The study cannot continue; the message says what, where, why and what to do."""


class TrialVoid(TunerError):  # noqa: N818  (named for the state it leads to)
    """A measurement says nothing about its config: it is repeated once, then recorded as void.

    An engine that restarted in both tries (`kind`) counts against the config. `reason` is for people.
    """

    def __init__(self, kind: VoidKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class LeaseLost(TunerError):  # noqa: N818
    """Another tuner owns these records; this one must not write any more."""


class StoreUnavailable(TunerError):  # noqa: N818
    """Records could not be read or written, even after retries."""
