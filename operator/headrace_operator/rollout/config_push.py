"""Bring running engines to the wanted hot knobs and SLO set, in place: read, compare, change, remember.

A change in the spec reaches every ready pod at once: there is no canary for it. (A TuningRun's proposal is judged by
`rollout.machine`.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_client.errors import EngineCallError, EngineRefused
from headrace_core.knobs.resolve import ConfigError
from headrace_operator.cluster.observe import PodView
from headrace_operator.engines.base import (
    ConfigChange,
    EngineApi,
    EngineProbe,
    LiveConfigApi,
    RunningEngine,
    SloChange,
    SloThresholds,
    WantedConfig,
)

LOG = logging.getLogger(__name__)
DRIFT_SECONDS = 60.0  # how long an engine seen with the right config is not asked again


@dataclass(frozen=True, slots=True)
class _LastLook:
    state: RunningEngine
    revision: str  # the wanted revision that it was compared with
    at: float


class ConfigPush:
    """Remembers the last look at each process (pod uid and restart count), so that few calls are made."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, int], _LastLook] = {}

    async def bring(
        self, engines: EngineApi, pods: Sequence[PodView], wanted: WantedConfig, *, token: str
    ) -> dict[str, EngineProbe]:
        """Compare each ready pod with `wanted` and change what differs. By pod uid.

        Engines that cannot be reconfigured keep the config that they started with: a new config needs a new pod.
        """
        ready = [pod for pod in pods if pod.ready and pod.ip and not pod.terminating]
        live = engines.live
        if live is None:
            return {pod.uid: EngineProbe(in_force=True) for pod in ready}
        results = await asyncio.gather(*(self._one(live, pod, wanted, token) for pod in ready))
        return {pod.uid: result for pod, result in zip(ready, results, strict=True)}

    def forget(self, uids: set[str]) -> None:
        """Drop what is known of pods that are gone."""
        self._seen = {identity: seen for identity, seen in self._seen.items() if identity[0] not in uids}

    async def _one(self, live: LiveConfigApi, pod: PodView, wanted: WantedConfig, token: str) -> EngineProbe:
        seen = self._seen.get(pod.identity)
        confirmed = seen is not None and seen.revision == wanted.revision
        if seen and confirmed and self._clock() - seen.at < DRIFT_SECONDS:
            return EngineProbe(state=seen.state, in_force=True)
        last = seen.state if seen else None
        try:
            state = await live.read(pod.ip, token=token)
            change = change_to(state, wanted)
            if change is not None:
                state = await self._change(live, pod, change, token)
        except (EngineRefused, ConfigError) as error:
            problems = "; ".join(str(problem) for problem in error.problems)
            return EngineProbe(state=last, refused=f"the engine refuses the config: {problems or error}")
        except EngineCallError as error:
            # One unanswered call does not undo what was seen in force.
            return EngineProbe(state=last, in_force=confirmed, unreachable=str(error))
        stale = boot_difference(state, wanted)
        if stale:
            return EngineProbe(state=state, unreachable=f"started with an older config ({stale}): delete the pod")
        self._seen[pod.identity] = _LastLook(state, wanted.revision, self._clock())
        return EngineProbe(state=state, in_force=True)

    @staticmethod
    async def _change(live: LiveConfigApi, pod: PodView, change: ConfigChange, token: str) -> RunningEngine:
        changed = await live.change(pod.ip, change, token=token)
        parts = [f"{name}={value}" for name, value in change.knobs.items()] + ["its SLO"] * (change.slo is not None)
        what = ", ".join(parts) or "its revision"
        LOG.info("pod %s: set %s; generation %d -> %d", pod.name, what, change.if_generation, changed.generation)
        return changed


def change_to(state: RunningEngine, wanted: WantedConfig) -> ConfigChange | None:
    """The change that brings an engine in `state` to `wanted`, or None if nothing differs. Raises `ConfigError`."""
    hot = wanted.hot(state.device)
    knobs = {name: value for name, value in hot.items() if state.config.get(name) != value}
    slo = None if _meaning(state.slo) == _meaning(wanted.slo) else SloChange(wanted.slo)
    if not knobs and slo is None and state.revision == wanted.revision:
        return None
    return ConfigChange(knobs=knobs, slo=slo, revision=wanted.revision, if_generation=state.generation)


def boot_difference(state: RunningEngine, wanted: WantedConfig) -> str:
    """A ceiling that the process should have read when it started but did not, or an empty string."""
    other = (name for name, value in wanted.ceilings.items() if state.ceilings.get(name, value) != value)
    return next((f"ceiling of {name}" for name in other), "")


def _meaning(slo: SloThresholds | None) -> dict[str, float]:
    values = {name: value for name, value in (slo or {}).items() if value is not None}
    # Without an ITL threshold, the percentile of ITL means nothing.
    return values if "itl_seconds" in values else {name: values[name] for name in values if name != "itl_percentile"}
