"""Runs the engine as a subprocess to observe each side's outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from headrace_bench.engine_command import engine_command
from headrace_bench.errors import BenchError
from headrace_core.observations import ObservationRequest, Observations


class QualityProgress(Protocol):
    """Shows the engine's progress."""

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """A side of `total` parts begins; call the result after each."""
        ...


async def observe(request: ObservationRequest, progress: QualityProgress) -> Observations:
    """The engine's observations. Raises `BenchError` with the engine's standard error."""
    told = _Told(progress)
    try:
        text = await engine_command("observe", given=json.dumps(request.to_json()), seen=told.take)
    except BenchError as error:
        raise BenchError(told.error or str(error)) from error
    try:
        return Observations.from_json(json.loads(text.rstrip("\n").rpartition("\n")[2]))
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"the engine's answer cannot be read, is it of another version? {error!r}") from error


class _Told:
    """Reads the engine's progress lines."""

    def __init__(self, progress: QualityProgress) -> None:
        self._progress = progress
        self._step: Callable[[], None] = _nothing
        self.error = ""

    def take(self, line: str) -> bool:
        try:
            said = json.loads(line)["observe"]
        except (ValueError, TypeError, KeyError):
            return False
        match said:
            case {"begin": str(what), "total": int(total)}:
                self._step = self._progress.begin(what, total)
            case {"done": 1}:
                self._step()
            case {"error": str(text)}:
                self.error = text
        return True


def _nothing() -> None:
    pass
