"""The config in force, who set it, and its generation, which grows with each change of any of them."""

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


UNCHANGED = Unchanged.UNCHANGED  # leaves the SLO set as it is, where None takes it away


class StaleGenerationError(EngineError):
    """`if_generation` names another generation than the one in force."""


class ConfigRefusedError(EngineError):
    """The config change is refused; nothing changed."""

    def __init__(self, refused: ChangeRefused) -> None:
        super().__init__("; ".join(str(problem) for problem in refused.problems))
        self.problems = refused.problems


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The config in force and its identity. `slo` is what requests are judged by."""

    generation: int
    revision: str
    config: EngineConfig
    slo: SloSet | None = None


class ConfigKeeper:
    """Changes the config of a scheduler and tells the metrics. Used by the step thread; `state` is for everybody."""

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics, *, revision: str) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._own_changes = 0  # generations that the scheduler does not count: of revision and SLO set
        self.state = ConfigState(scheduler.generation, revision, scheduler.config, metrics.slo)
        self._tell()

    def generation(self, planned: int) -> int:
        """Of a plan that the scheduler made in its generation `planned`, the newest."""
        return planned + self._own_changes

    def change(
        self, changes: Mapping[str, object], *, now: float, revision: str | None, if_generation: int | None,
        slo: SloSet | Unchanged | None,
    ) -> ConfigState:  # fmt: skip
        """All of it or nothing: one new generation. Raises `ConfigRefusedError`, `StaleGenerationError`."""
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
