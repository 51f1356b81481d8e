"""Errors of the benchmarks."""

from __future__ import annotations

from headrace_core.errors import HeadraceError


class BenchError(HeadraceError):
    """A benchmark cannot start or continue; the message says what, where, why and what to do."""
