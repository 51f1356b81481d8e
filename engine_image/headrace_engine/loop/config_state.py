"""The config in force, its revision and SLO set, and its generation, which grows when any of them changes."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import ChangeRefused
from headrace_core.scheduler.scheduler import Scheduler
from headrace_engine.errors import EngineError
from headrace_engine.metrics.engine_metrics import EngineMetrics

log = logging.getLogger(__name__)


class Unchanged(enum.Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED  # keeps the SLO set as it is, whereas None removes it


class StaleGenerationError(EngineError):
    """`if_generation` is not the generation in force; nothing changed."""


class ConfigRefusedError(EngineError):
    """The config change was refused; nothing changed. `problems` says why."""

    def __init__(self, refused: ChangeRefused) -> None:
        super().__init__("; ".join(str(problem) for problem in refused.problems))
        self.problems = refused.problems


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The config in force and its identity. `slo` is the SLO set that requests are judged by."""

    generation: int
    revision: str
    config: EngineConfig
    slo: SloSet | None = None


class ConfigKeeper:
    """Changes the scheduler's config and updates the metrics. Used by the step thread; any thread may read `state`."""

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, *, revision: str) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._own_changes = 0  # changes of revision or SLO set only, which the scheduler does not count
        self.state = ConfigState(scheduler.generation, revision, scheduler.config, metrics.slo)
        self._tell()

    def generation(self, planned: int) -> int:
        """The full generation for `planned`, the scheduler's own count in its newest plan."""
        return planned + self._own_changes

    def change(
        self, changes: Mapping[str, object], *, now: float, revision: str | None, if_generation: int | None,
        slo: SloSet | Unchanged | None,
    ) -> ConfigState:  # fmt: skip
        """Apply all changes, as one new generation, or none. Raises `ConfigRefusedError`, `StaleGenerationError`."""
        old = self.state
        if if_generation is not None and if_generation != old.generation:
            raise StaleGenerationError(
                f"if_generation {if_generation} is stale: generation {old.generation} is in force; read it again"
            )
        answer = self._scheduler.reconfigure(changes, now)
        if isinstance(answer, ChangeRefused):
            raise ConfigRefusedError(answer)
        revision = old.revision if revision is None else revision
        slo = old.slo if isinstance(slo, Unchanged) else slo
        if (revision, slo) != (old.revision, old.slo) and answer.config == old.config:
            self._own_changes += 1
        self.state = ConfigState(self.generation(answer.generation), revision, answer.config, slo)
        if self.state != old:
            if slo != old.slo:
                self._metrics.set_slo(slo)
            self._tell()
            log.info("config changed", extra={"generation": self.state.generation, "revision": revision})
        return self.state

    def _tell(self) -> None:
        state = self.state
        self._metrics.set_config(state.config, generation=state.generation, revision=state.revision)
