"""Bring running engines to the wanted hot knobs and SLO set, in place: read, compare, change, remember.

A change in the spec reaches every ready pod at once. (The canary, which changes a slice first and judges it, comes
with its own issue; a TuningRun's proposal is judged already, by `rollout`.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_client.engine import KEEP, EngineState, Keep, SloValues
from headrace_client.errors import EngineCallError, EngineRefused
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import KnobValue
from headrace_operator.cluster.observe import PodView
from headrace_operator.protocols import EngineApi
from headrace_operator.service.effective_config import EffectiveConfig
from headrace_operator.service.readiness import EngineProbe

LOG = logging.getLogger(__name__)
DRIFT_SECONDS = 60.0  # how old a look at an engine may be that is known to be right


@dataclass(frozen=True, slots=True)
class _LastLook:
    state: EngineState
    revision: str  # the wanted revision that it was compared with
    at: float


class ConfigPush:
    """Remembers the last look at each process (pod uid and restart count), so that few calls are made."""

    def __init__(self, engines: EngineApi, *, clock: Callable[[], float]) -> None:
        self._engines = engines
        self._clock = clock
        self._seen: dict[tuple[str, int], _LastLook] = {}

    async def bring(self, pods: Sequence[PodView], config: EffectiveConfig, *, token: str) -> dict[str, EngineProbe]:
        """Compare each ready pod with `config` and change what differs. By pod uid."""
        ready = [pod for pod in pods if pod.ready and pod.ip and not pod.terminating]
        results = await asyncio.gather(*(self._one(pod, config, token) for pod in ready))
        return {pod.uid: result for pod, result in zip(ready, results, strict=True)}

    def forget(self, uids: set[str]) -> None:
        """Drop what is known of pods that are gone."""
        self._seen = {identity: seen for identity, seen in self._seen.items() if identity[0] not in uids}

    async def _one(self, pod: PodView, config: EffectiveConfig, token: str) -> EngineProbe:
        seen = self._seen.get(pod.identity)
        if seen and seen.revision == config.revision and self._clock() - seen.at < DRIFT_SECONDS:
            return EngineProbe(state=seen.state, in_force=True)
        confirmed = seen is not None and seen.revision == config.revision
        last = seen.state if seen else None
        try:
            state = await self._engines.read(pod.ip, token=token)
            state = await self._correct(pod, state, config, token)
        except (EngineRefused, ConfigError) as error:
            problems = "; ".join(str(problem) for problem in error.problems)
            return EngineProbe(state=last, refused=f"the engine refuses the config: {problems or error}")
        except EngineCallError as error:
            # One unanswered look does not undo what was seen to be right.
            return EngineProbe(state=last, in_force=confirmed, unreachable=str(error))
        stale = boot_difference(state, config)
        if stale:
            return EngineProbe(state=state, unreachable=f"started with an older engine.json ({stale}): delete the pod")
        self._seen[pod.identity] = _LastLook(state, config.revision, self._clock())
        return EngineProbe(state=state, in_force=True)

    async def _correct(self, pod: PodView, state: EngineState, config: EffectiveConfig, token: str) -> EngineState:
        knobs, slo = hot_difference(state, config), slo_difference(state, config)
        if not knobs and slo is KEEP and state.revision == config.revision:
            return state
        changed = await self._engines.change(
            pod.ip, token=token, knobs=knobs, slo=slo, revision=config.revision, generation=state.generation
        )
        parts = [f"{name}={value}" for name, value in knobs.items()] + ["its SLO"] * (slo is not KEEP)
        what = ", ".join(parts) or "its revision"
        LOG.info("pod %s: set %s; generation %d -> %d", pod.name, what, state.generation, changed.generation)
        return changed


def hot_difference(state: EngineState, config: EffectiveConfig) -> dict[str, KnobValue]:
    """Hot knobs whose value in force is not the wanted one, with the wanted value. Raises `ConfigError`."""
    wanted = config.hot(state.device)
    return {name: value for name, value in wanted.items() if state.config.get(name) != value}


def slo_difference(state: EngineState, config: EffectiveConfig) -> SloValues | Keep | None:
    """The wanted SLO set if another is in force (None: there should be none), or `KEEP`."""
    return KEEP if _slo(state.slo) == _slo(config.slo) else config.slo


def boot_difference(state: EngineState, config: EffectiveConfig) -> str:
    """What the process should have read at its start and did not, or an empty string."""
    lower = (name for name, value in config.ceilings.items() if (state.ceiling(name) or value) != value)
    return next((f"ceiling of {name}" for name in lower), "")


def _slo(slo: SloValues | None) -> dict[str, float]:
    values = {name: value for name, value in (slo or {}).items() if value is not None}
    # Without a threshold for it, its percentile says nothing.
    return values if "itl_seconds" in values else {name: values[name] for name in values if name != "itl_percentile"}
