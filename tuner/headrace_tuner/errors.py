"""Errors of the tuner. Foreign exceptions are mapped to these once, at the I/O edge."""

from __future__ import annotations

from headrace_core.errors import HeadraceError


class TunerError(HeadraceError):
    """The study cannot go on; the message says what, where, why and what to do."""


class TrialVoid(TunerError):  # noqa: N818  (reads as the state it leads to)
    """A measurement says nothing about its config: it is repeated once, then recorded as void.

    `restarted`: the engine's process changed meanwhile, which on a repeat counts against the config.
    """

    def __init__(self, reason: str, *, restarted: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.restarted = restarted


class LeaseLost(TunerError):  # noqa: N818
    """Another tuner owns these records; this one must not write any more."""


class StoreUnavailable(TunerError):  # noqa: N818
    """Records could not be read or written, also after retries."""
