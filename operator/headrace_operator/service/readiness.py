"""One finding from pods and engines: whether the engines are ready, and if not, why. Pure.

Used for the stable pods of a service and for the trial pod of a tuning run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_api.engine_exit import ExitKind
from headrace_api.v1alpha1.conditions import Reason
from headrace_operator.cluster.findings import Finding, no, yes
from headrace_operator.cluster.observe import DeploymentView, PodView
from headrace_operator.engines.base import EngineDefinition, EngineProbe

IMAGE_PROBLEMS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_PROBLEMS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
LAST_WORDS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Pods of one track and what is known of them."""

    pods: Sequence[PodView]
    replicas: int
    revision: str
    engine: EngineDefinition
    probed: Mapping[str, EngineProbe]  # by pod uid
    deployment: DeploymentView | None = None

    @property
    def live(self) -> list[PodView]:
        """Pods that are neither terminating nor finished."""
        return [pod for pod in self.pods if not pod.terminating and not pod.finished]

    @property
    def current(self) -> list[PodView]:
        """Live pods of the wanted revision."""
        return [pod for pod in self.live if pod.revision == self.revision]

    @property
    def ready(self) -> list[PodView]:
        """Live pods of the wanted revision that are ready."""
        return [pod for pod in self.current if pod.ready]

    def facts(self, pod: PodView) -> EngineProbe:
        """What the last call to its admin port showed."""
        return self.probed.get(pod.uid, EngineProbe())


def engines_ready(fleet: Fleet) -> Finding:
    """Whether as many engines as asked for are up at the wanted revision, with the wanted config in force."""
    if fleet.replicas == 0:
        return no(Reason.SCALED_TO_ZERO, "replicas is 0: nothing should run")
    if len(fleet.ready) < fleet.replicas:
        return _waiting(fleet)
    return _config_in_force(fleet)


def _waiting(fleet: Fleet) -> Finding:
    # There is no revision until the cache shows the new Deployment.
    at = f" at revision {fleet.revision}" if fleet.revision else ""
    count = f"{len(fleet.ready)} of {fleet.replicas} pods ready{at}"
    if fleet.deployment is not None and fleet.deployment.failure:
        return no(Reason.PODS_PENDING, f"{count}; no pod can be made: {fleet.deployment.failure}")
    found = [finding for pod in fleet.current if not pod.ready and (finding := _pod_problem(pod, fleet.engine))]
    if found:
        return no(found[0].reason, f"{count}; {found[0].message}")
    old = len(fleet.live) - len(fleet.current)
    wait = f"; {old} of an older revision still there" if old else ""
    return no(Reason.PODS_PENDING, f"{count}{wait}")


def _pod_problem(pod: PodView, engine: EngineDefinition) -> Finding | None:
    checks: tuple[Callable[[], Finding | None], ...] = (
        lambda: _unschedulable(pod),
        lambda: _image(pod),
        lambda: _exited(pod, engine),
        lambda: _container_config(pod),
        lambda: _starting(pod),
    )
    return next((finding for check in checks if (finding := check())), None)


def _unschedulable(pod: PodView) -> Finding | None:
    return no(Reason.UNSCHEDULABLE, f"pod {pod.name}: {pod.unschedulable}") if pod.unschedulable else None


def _image(pod: PodView) -> Finding | None:
    if pod.waiting not in IMAGE_PROBLEMS:
        return None
    return no(Reason.IMAGE_PULL_FAILED, f"pod {pod.name}: {pod.waiting}: {_short(pod.waiting_message)}")


def _exited(pod: PodView, engine: EngineDefinition) -> Finding | None:
    ended = pod.exited
    if ended is None or (ended.code == 0 and pod.waiting != "CrashLoopBackOff"):
        return None
    if ended.reason == "OOMKilled":
        return no(Reason.OUT_OF_MEMORY, f"pod {pod.name}: the engine exceeded its memory limit; raise resources.memory")
    said = engine.exit(ended)
    words = _short(said.message)
    if said.kind is ExitKind.MODEL_NOT_FOUND:
        return no(Reason.MODEL_NOT_FOUND, f"pod {pod.name}: {words}; correct spec.model.uri")
    tail = f": {words}" if words else f"; see kubectl logs {pod.name} --previous"
    return no(
        Reason.CRASH_LOOPING,
        f"pod {pod.name}: the engine exited with code {ended.code} ({pod.restarts} restarts){tail}",
    )


def _container_config(pod: PodView) -> Finding | None:
    if pod.waiting not in CONFIG_PROBLEMS:
        return None
    return no(Reason.PODS_PENDING, f"pod {pod.name}: {pod.waiting}: {_short(pod.waiting_message)}")


def _starting(pod: PodView) -> Finding | None:
    return no(Reason.ENGINE_STARTING, f"pod {pod.name}: the engine is loading the model") if pod.running else None


def _config_in_force(fleet: Fleet) -> Finding:
    facts = {pod.name: fleet.facts(pod) for pod in fleet.ready}
    refused = [f"pod {name}: {fact.refused}" for name, fact in facts.items() if fact.refused]
    if refused:
        return no(Reason.CONFIG_REFUSED, refused[0])
    waiting = {name: fact for name, fact in facts.items() if not fact.in_force}
    unreachable = [f"pod {name}: {fact.unreachable}" for name, fact in waiting.items() if fact.unreachable]
    if unreachable:
        return no(Reason.ENGINE_UNREACHABLE, unreachable[0])
    if waiting:
        return no(Reason.CONFIG_PENDING, f"the wanted config is not in force yet on {', '.join(waiting)}")
    return yes(
        Reason.ENGINES_READY, f"{len(fleet.ready)} of {fleet.replicas} engines ready at revision {fleet.revision}"
    )


def devices(fleet: Fleet, *, on_gpu: bool) -> str:
    """What the ready engines run on, as a phrase that mentions a pretend GPU, or one that is not used."""
    states = [state for pod in fleet.ready if (state := fleet.facts(pod).state) is not None]
    pretended = sum(1 for state in states if state.pretend_gpu)
    if pretended:
        return f"{pretended} of {len(states)} on a pretend GPU: the CPU does the work"
    kinds = sorted({state.device for state in states})
    unused = " although a GPU was asked for" if on_gpu and "cpu" in kinds else ""
    return f"on {', '.join(kinds)}{unused}" if kinds else ""


def _short(text: str) -> str:
    line = text.strip().splitlines()[-1] if text.strip() else ""
    return line if len(line) <= LAST_WORDS else line[: LAST_WORDS - 1] + "…"
