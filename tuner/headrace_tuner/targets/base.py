"""The contract of an engine that configs are tried on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace_client.engine import EngineState
from headrace_core.knobs.table import KnobValue


class KnobsRefused(Exception):  # noqa: N818  (data, not a failure)
    """The engine refuses these knobs; the message says why."""


class TrialTarget(Protocol):
    """An engine that configs are tried on."""

    @property
    def url(self) -> str:
        """Where completions are requested."""
        ...

    async def state(self) -> EngineState:
        """The config in force. Waits while the engine restarts. Raises `TunerError` if it does not come back."""
        ...

    async def apply(self, knobs: Mapping[str, KnobValue], *, revision: str) -> EngineState:
        """Apply knobs under the name `revision`. Raises `KnobsRefused` or `TrialVoid`."""
        ...

    async def settle(self, timeout: float) -> None:  # noqa: ASYNC109  (it waits for the engine, not for its own awaits)
        """Wait until no request runs or waits. Raises `TrialVoid` after `timeout` seconds."""
        ...
