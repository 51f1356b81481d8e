"""Trace files, read from disk."""

from __future__ import annotations

from pathlib import Path

from headrace_bench.errors import BenchError
from headrace_core.workload.plans import PlannedRequest
from headrace_core.workload.trace_files import parse_trace


def read_trace(path: Path, *, unit: str = "s", scale: float = 1.0, limit: int | None = None) -> list[PlannedRequest]:
    """The requests of a trace file in order of time, the first at 0. Raises `HeadraceError` naming file and line.

    `scale` stretches time: 0.5 plays the trace in half of it.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return parse_trace(lines, name=str(path), unit=unit, scale=scale, limit=limit)
    except OSError as error:
        raise BenchError(f"--trace {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"--trace {path}: is not UTF-8 text: {error}") from error
