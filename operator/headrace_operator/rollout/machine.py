"""The rollout of a proposal, in place: measure, apply, measure again, keep or restore. A pure state machine.

    MeasuringBefore -> Applying -> MeasuringAfter -> Kept | RolledBack | Failed

One object, ConfigMap NAME-tuned, decides which knobs are wanted. If it is absent or belongs to another run, the old
ones; if it is ours, the proposal, which is on trial (Checking) or there to stay (Kept). The service's reconcile brings
the engines there. This machine only returns what to write into that object and then into the status, always in that
order. After a kill between the two writes, the next pass finds the decision written, and each phase handles that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace_api.v1alpha1.tuningrun import RolloutPhase, RolloutPod, RolloutStatus, TuningRunSpec
from headrace_core.evidence.verdict import JudgedOutcome, judge
from headrace_core.evidence.windows import WindowStats
from headrace_core.knobs.table import KnobValue
from headrace_operator.protocols import WindowQuery
from headrace_operator.rollout.analysis import (
    WindowMeasured,
    WindowReading,
    WindowVoid,
    explain_judgement,
    measures,
)
from headrace_operator.rollout.revisions import ActiveRevision, RevisionState

APPLY_SECONDS = 60.0  # for the engines to take the proposal
EXTENSIONS = 5  # window lengths by which a measurement with too few requests may be extended
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One ready engine. `wanted` are the hot knobs that the service wants it to have now."""

    name: str
    uid: str
    started_at: datetime
    generation: int
    config: Mapping[str, KnobValue]
    wanted: Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """A proposal, and the run that made it."""

    run: str
    run_uid: str
    knobs: Mapping[str, KnobValue]
    override_pinned: bool
    pinned: Mapping[str, KnobValue]  # those of these knobs that the service's spec pins


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutScene:
    """Everything that a step decides from."""

    now: datetime
    namespace: str
    proposal: ProposedChange
    spec: TuningRunSpec
    min_requests: int
    pods: Mapping[str, PodFacts]  # ready engines that answered just now, by uid
    present: frozenset[str]  # uids of the stable pods that are there; under load one may not answer for a moment
    tuned: ActiveRevision | None
    reading: WindowReading | None = None
    waiting: float | None = None  # requests in the engines' queues; None: not known
    service_problem: str = ""  # why the service's engines are not ready, if they are not

    @property
    def ours(self) -> bool:
        """Whether this run's proposal is in force."""
        return self.tuned is not None and self.tuned.run_uid == self.proposal.run_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """The result of a step: first `tuned` is written, if `write`, then the status."""

    status: RolloutStatus
    write: bool = False
    tuned: ActiveRevision | None = None


def begin(scene: RolloutScene) -> RolloutStatus:
    """The status of a rollout that begins now, with the pods as they are."""
    pods = sorted(scene.pods.values(), key=lambda pod: pod.name)
    return RolloutStatus(
        phase=RolloutPhase.MEASURING_BEFORE,
        started_at=scene.now,
        phase_started_at=scene.now,
        message="measuring the service under its current knobs",
        pods=[
            RolloutPod(name=pod.name, uid=pod.uid, started_at=pod.started_at, from_generation=pod.generation)
            for pod in pods
        ],
    )


def window(status: RolloutStatus, scene: RolloutScene) -> WindowQuery | None:
    """The window whose reading the next step needs, or None."""
    if status.phase not in (RolloutPhase.MEASURING_BEFORE, RolloutPhase.MEASURING_AFTER):
        return None
    after = status.phase is RolloutPhase.MEASURING_AFTER
    if after and not scene.ours:
        return None
    settle = settle_seconds(scene.spec) if after else scene.spec.workload.warmup_seconds
    start = _phase_start(status).timestamp() + settle
    generations = {pod.name: (pod.to_generation if after else pod.from_generation) or 0 for pod in status.pods}
    return WindowQuery(
        namespace=scene.namespace,
        generations=generations,
        start=start,
        end=start + scene.spec.workload.duration_seconds,
    )


def settle_seconds(spec: TuningRunSpec) -> float:
    """Seconds that are not counted, from when the change is in force and the old queue is empty."""
    return max(spec.workload.warmup_seconds, spec.workload.duration_seconds / 2)


def step(status: RolloutStatus, scene: RolloutScene) -> RolloutStep:
    """Take one step. If its status is never written, nothing is lost: the next pass takes the step again."""
    if status.phase is RolloutPhase.MEASURING_BEFORE:
        return _measuring_before(status, scene)
    if status.phase is RolloutPhase.APPLYING:
        return _applying(status, scene)
    if status.phase is RolloutPhase.MEASURING_AFTER:
        return _measuring_after(status, scene)
    return RolloutStep(status=status)


def _measuring_before(status: RolloutStatus, scene: RolloutScene) -> RolloutStep:
    problem = _disturbance(status, scene, [pod.from_generation for pod in status.pods])
    stats, why = (None, problem) if problem else _read(status, scene)
    if why:
        return RolloutStep(status=_to(status, RolloutPhase.FAILED, scene, f"Inconclusive: {why}. Nothing was changed"))
    if stats is None:
        return RolloutStep(status=status)
    measured = status.model_copy(update={"before": measures(stats)})
    return RolloutStep(
        status=_to(measured, RolloutPhase.APPLYING, scene, "applying the proposal to the running engines")
    )


def _applying(status: RolloutStatus, scene: RolloutScene) -> RolloutStep:
    late = scene.now - _phase_start(status) > timedelta(seconds=APPLY_SECONDS)
    if not scene.ours:
        if late:
            return RolloutStep(status=_to(status, RolloutPhase.FAILED, scene, "could not be applied in time"))
        return RolloutStep(status=status, write=True, tuned=_record(scene))
    changed = [scene.pods.get(pod.uid) for pod in status.pods]
    if all(pod is not None and _has(pod, scene.proposal.knobs) for pod in changed):
        return RolloutStep(status=_draining(status, scene))
    # Every pod took the proposal earlier, and some pod is just not answering now.
    taken = all(pod.to_generation is not None and pod.uid in scene.present for pod in status.pods)
    if late and (not taken or _drain_is_over(status, scene)):
        why = scene.service_problem or "the engines did not take it"
        message = f"could not be applied within {APPLY_SECONDS:g} s: {why}. The old knobs are restored"
        return RolloutStep(status=_to(status, RolloutPhase.FAILED, scene, message), write=True, tuned=_before(scene))
    return RolloutStep(status=status)


def _draining(status: RolloutStatus, scene: RolloutScene) -> RolloutStatus:
    """Every engine has the proposal: note their generations, and continue once the old queue is empty."""
    pods = [pod.model_copy(update={"to_generation": scene.pods[pod.uid].generation}) for pod in status.pods]
    applied = status.model_copy(update={"pods": pods})
    if scene.waiting != 0 and not _drain_is_over(status, scene):
        return applied.model_copy(update={"message": "waiting until the old queue is empty"})
    message = "the proposal is in force; measuring the service again"
    return _to(applied, RolloutPhase.MEASURING_AFTER, scene, message)


def _drain_is_over(status: RolloutStatus, scene: RolloutScene) -> bool:
    """Whether the queue has had its time to empty. Requests that queued up under the old knobs would count against the
    new ones; if the queue never empties, the new knobs are to blame."""
    limit = APPLY_SECONDS + EXTENSIONS * scene.spec.workload.duration_seconds
    return scene.now - _phase_start(status) > timedelta(seconds=limit)


def _measuring_after(status: RolloutStatus, scene: RolloutScene) -> RolloutStep:
    if scene.tuned is not None and scene.ours and scene.tuned.state is RevisionState.KEPT:
        return RolloutStep(status=_already_kept(status, scene))
    if not scene.ours:
        return _restoring(status, scene)
    problem = _disturbance(status, scene, [pod.to_generation for pod in status.pods])
    stats, why = (None, problem) if problem else _read(status, scene)
    if why:
        return _restore(status, scene, f"Inconclusive: {why}")
    if stats is None:
        return RolloutStep(status=status)
    after = status.model_copy(update={"after": measures(stats)})
    outcome, why = _judge(status, scene, stats)
    if outcome is JudgedOutcome.BETTER:
        kept = _to(after, RolloutPhase.KEPT, scene, f"better: {why}")
        return RolloutStep(status=kept, write=True, tuned=_kept(scene))
    prefix = "Inconclusive" if outcome is JudgedOutcome.INCONCLUSIVE else "not better beyond its interval"
    return _restore(after, scene, f"{prefix}: {why}")


def _already_kept(status: RolloutStatus, scene: RolloutScene) -> RolloutStatus:
    """The decision was written but its status was lost: report it with the numbers that can still be read."""
    if not isinstance(scene.reading, WindowMeasured):
        return _to(status, RolloutPhase.KEPT, scene, "better; the numbers were lost when the operator restarted")
    after = status.model_copy(update={"after": measures(scene.reading.stats)})
    return _to(after, RolloutPhase.KEPT, scene, f"better: {_judge(status, scene, scene.reading.stats)[1]}")


def _judge(status: RolloutStatus, scene: RolloutScene, measured: WindowStats) -> tuple[JudgedOutcome, str]:
    """The outcome and its reason in a sentence."""
    before, after = status.before.counts() if status.before else None, measured.counts
    if before is None:
        why = "the counts of the first window are not in the status: an older operator wrote it"
        return JudgedOutcome.INCONCLUSIVE, why
    confidence = scene.spec.verification.confidence
    judgement = judge(before, after, min_requests=scene.min_requests, confidence=confidence)
    return judgement.outcome, explain_judgement(judgement, before, after, min_requests=scene.min_requests)


def _restore(status: RolloutStatus, scene: RolloutScene, why: str) -> RolloutStep:
    """Write the old knobs back as the wanted ones; the phase ends when the engines have them."""
    return RolloutStep(status=status.model_copy(update={"message": why}), write=True, tuned=_before(scene))


def _restoring(status: RolloutStatus, scene: RolloutScene) -> RolloutStep:
    knobs = scene.proposal.knobs
    back = all(pod.config.get(name) == pod.wanted.get(name) for pod in scene.pods.values() for name in knobs)
    if not (scene.pods and back):
        return RolloutStep(status=status)
    return RolloutStep(status=_to(status, RolloutPhase.ROLLED_BACK, scene, f"{status.message}. The old knobs are back"))


def _disturbance(status: RolloutStatus, scene: RolloutScene, generations: list[int | None]) -> str:
    """Why the pods are no longer those that were recorded, or an empty string."""
    for pod, generation in zip(status.pods, generations, strict=True):
        facts = scene.pods.get(pod.uid)
        if pod.uid not in scene.present:
            return f"pod {pod.name} is gone"
        if facts is None:
            continue  # not known now; nothing is decided before it answers, see _read
        if facts.started_at != pod.started_at:
            return f"the engine of pod {pod.name} restarted"
        if facts.generation != generation:
            return f"someone else changed the config of pod {pod.name} in the meantime"
    return "" if status.pods else "no engine was ready"


def _read(status: RolloutStatus, scene: RolloutScene) -> tuple[WindowStats | None, str]:
    """The window's numbers, or why there will be none; neither if they are still to come."""
    query = window(status, scene)
    if query is None:
        return None, ""
    latest = query.end + EXTENSIONS * scene.spec.workload.duration_seconds
    over = scene.now.timestamp() > latest
    silent = [pod.name for pod in status.pods if pod.uid not in scene.pods]
    if silent:
        return None, f"pod {silent[0]} is not ready or does not answer" if over else ""
    if isinstance(scene.reading, WindowVoid):
        return None, scene.reading.why
    if not isinstance(scene.reading, WindowMeasured):
        return None, "Prometheus has no scrape of the window" if over and scene.reading else ""
    counts = scene.reading.stats.counts
    if counts.requests >= scene.min_requests:
        return scene.reading.stats, ""
    few = f"only {counts.requests:g} requests finished in {counts.seconds:.0f} s, {scene.min_requests} are needed"
    return None, few if over else ""


def _to(status: RolloutStatus, phase: RolloutPhase, scene: RolloutScene, message: str) -> RolloutStatus:
    return status.model_copy(update={"phase": phase, "phase_started_at": scene.now, "message": message})


def _phase_start(status: RolloutStatus) -> datetime:
    return status.phase_started_at or status.started_at


def _has(pod: PodFacts, knobs: Mapping[str, KnobValue]) -> bool:
    return all(pod.config.get(name) == value for name, value in knobs.items())


def _record(scene: RolloutScene) -> ActiveRevision:
    proposal = scene.proposal
    some = next(iter(scene.pods.values()), None)
    previous = {name: some.wanted.get(name) for name in proposal.knobs} if some else {}
    return ActiveRevision(
        tuning_run=proposal.run,
        run_uid=proposal.run_uid,
        state=RevisionState.CHECKING,
        knobs=dict(proposal.knobs),
        applied_at=scene.now,
        override_pinned=proposal.override_pinned,
        pinned=dict(proposal.pinned),
        previous=previous,
        restore=scene.tuned.to_json() if scene.tuned else None,
    )


def _before(scene: RolloutScene) -> ActiveRevision | None:
    return scene.tuned.before() if scene.tuned is not None and scene.ours else scene.tuned


def _kept(scene: RolloutScene) -> ActiveRevision:
    record = scene.tuned or _record(scene)
    return ActiveRevision(
        tuning_run=record.tuning_run,
        run_uid=record.run_uid,
        state=RevisionState.KEPT,
        knobs=record.knobs,
        applied_at=record.applied_at,
        override_pinned=record.override_pinned,
        pinned=record.pinned,
        previous=record.previous,
    )
