"""The rollout machine, one situation at a time: what each phase decides, and that no kill leaves it undecided."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace_api.v1alpha1.tuningrun import RolloutPhase, RolloutStatus, TuningRunSpec
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.analysis import WindowMeasured, WindowPending, WindowReading, WindowVoid, measures
from headrace_operator.rollout.machine import (
    APPLY_SECONDS,
    EXTENSIONS,
    PodFacts,
    ProposedChange,
    RolloutScene,
    RolloutStep,
    begin,
    settle_seconds,
    step,
    window,
)
from headrace_operator.rollout.revisions import ActiveRevision, RevisionState

T0 = datetime(2026, 1, 1, tzinfo=UTC)
BOOT = T0 - timedelta(hours=1)
OLD, NEW = {"prefill_chunk_size": 256}, {"prefill_chunk_size": 64}
LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max")
DURATION, WARMUP, MIN_REQUESTS = 20.0, 3.0, 50
SPEC = TuningRunSpec.model_validate(
    {
        "serviceRef": {"name": "chat"},
        "knobs": [{"name": "prefillChunkSize", "min": 32, "max": 256}],
        "budget": {"trials": 5},
        "workload": {
            "rate": 4, "duration": "20s", "warmup": "3s", "promptTokens": {"short": {"mean": 32}},
            "outputTokens": {"mean": 8},
        },
    }
)  # fmt: skip
PROPOSAL = ProposedChange(run="tune", run_uid="run-1", knobs=NEW, override_pinned=False, pinned={})
CHECKING = ActiveRevision(
    tuning_run="tune", run_uid="run-1", state=RevisionState.CHECKING, knobs=dict(NEW), applied_at=T0, previous=dict(OLD)
)
KEPT = replace(CHECKING, state=RevisionState.KEPT)
EARLIER = replace(KEPT, tuning_run="last-week", run_uid="run-0", knobs={"decode_ratio": 0.5})
OVER_EARLIER = replace(CHECKING, restore=EARLIER.to_json())
Phase = RolloutPhase


def stats(requests: float, good: float) -> WindowStats:
    counts = Counts(good=good, requests=requests, seconds=DURATION, output_tokens=8 * requests)
    return WindowStats(counts=counts, **dict.fromkeys(LATENCIES, 0.1))


def measured(requests: float, good: float) -> WindowMeasured:
    return WindowMeasured(stats(requests, good))


def facts(name: str = "a", **change: Any) -> PodFacts:
    base = {"name": name, "uid": f"uid-{name}", "started_at": BOOT, "generation": 1, "config": OLD, "wanted": OLD}
    return PodFacts(**base | change)


def changed(name: str = "a", **change: Any) -> PodFacts:
    """A pod that has the proposal."""
    return facts(name, **{"generation": 2, "config": NEW, "wanted": NEW} | change)


def scene(*pods: PodFacts, after: float = 0.0, present: tuple[str, ...] | None = None, **more: Any) -> RolloutScene:
    """What is seen `after` so many seconds of the phase."""
    found = {pod.uid: pod for pod in pods}
    base = {
        "now": T0 + timedelta(seconds=after), "namespace": "ns", "proposal": PROPOSAL, "spec": SPEC,
        "min_requests": MIN_REQUESTS, "pods": found, "tuned": None, "waiting": 0.0,
        "present": frozenset(found if present is None else [f"uid-{name}" for name in present]),
    }  # fmt: skip
    return RolloutScene(**base | more)


def status(phase: RolloutPhase, *, pods: int = 1, to_generation: int | None = 2) -> RolloutStatus:
    """A rollout in `phase` since T0, of pods a, b, ...; 40 of 80 requests were good before."""
    first = begin(scene(*(facts(name) for name in "abc"[:pods])))
    if phase is Phase.MEASURING_BEFORE:
        return first
    known = {"phase": phase, "before": measures(stats(80, 40))}
    if phase is not Phase.APPLYING:
        known["pods"] = [pod.model_copy(update={"to_generation": to_generation}) for pod in first.pods]
    return first.model_copy(update=known)


WINDOW_OVER = WARMUP + DURATION
SETTLED = DURATION / 2  # longer than the warm-up
AFTER_OVER = SETTLED + DURATION
EXTENDED = EXTENSIONS * DURATION


def test_a_rollout_begins_with_the_pods_as_they_are() -> None:
    first = begin(scene(facts("b", generation=7), facts("a")))
    assert first.phase is Phase.MEASURING_BEFORE
    assert [(pod.name, pod.uid, pod.from_generation, pod.to_generation) for pod in first.pods] == [
        ("a", "uid-a", 1, None),
        ("b", "uid-b", 7, None),
    ]


def test_each_window_is_of_one_generation_and_leaves_out_what_settles() -> None:
    before = window(status(Phase.MEASURING_BEFORE), scene(facts()))
    assert before is not None
    assert (before.generations, before.start, before.end) == (
        {"a": 1}, T0.timestamp() + WARMUP, T0.timestamp() + WINDOW_OVER,
    )  # fmt: skip
    after = window(status(Phase.MEASURING_AFTER), scene(changed(), tuned=CHECKING))
    assert after is not None
    assert settle_seconds(SPEC) == SETTLED
    assert (after.generations, after.start, after.end) == (
        {"a": 2}, T0.timestamp() + SETTLED, T0.timestamp() + AFTER_OVER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "tuned"),
    [
        (Phase.APPLYING, CHECKING),
        (Phase.KEPT, KEPT),
        (Phase.ROLLED_BACK, None),
        (Phase.FAILED, None),
        (Phase.MEASURING_AFTER, None),  # decided: it waits for the old knobs
        (Phase.MEASURING_AFTER, EARLIER),
    ],
)
def test_a_phase_that_measures_nothing_asks_for_no_window(phase: RolloutPhase, tuned: ActiveRevision | None) -> None:
    assert window(status(phase), scene(changed(), tuned=tuned)) is None


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is seen, and what follows. `tuned` is what must be written; ... means no write at all."""

    name: str
    phase: RolloutPhase
    seen: RolloutScene
    becomes: RolloutPhase
    says: str = ""
    tuned: Any = ...
    pods: int = 1
    to_generation: int | None = 2

    def taken(self) -> RolloutStep:
        return step(status(self.phase, pods=self.pods, to_generation=self.to_generation), self.seen)


def before(name: str, seen: RolloutScene, becomes: RolloutPhase, says: str = "", **more: Any) -> Situation:
    return Situation(name=name, phase=Phase.MEASURING_BEFORE, seen=seen, becomes=becomes, says=says, **more)


def applying(name: str, seen: RolloutScene, becomes: RolloutPhase, says: str = "", **more: Any) -> Situation:
    return Situation(name=name, phase=Phase.APPLYING, seen=seen, becomes=becomes, says=says, **more)


def after(name: str, seen: RolloutScene, becomes: RolloutPhase, says: str = "", **more: Any) -> Situation:
    return Situation(name=name, phase=Phase.MEASURING_AFTER, seen=seen, becomes=becomes, says=says, **more)


ENOUGH, FEW, NONE_YET = measured(80, 40), measured(49, 30), WindowPending("a scrape is still to come")
STAYS = Phase.MEASURING_BEFORE
BEFORE = [
    before("the window is open", scene(facts(), after=5, reading=NONE_YET), STAYS),
    before("the window was read", scene(facts(), after=24, reading=ENOUGH), Phase.APPLYING, "applying the proposal"),
    before("just enough requests", scene(facts(), after=24, reading=measured(50, 0)), Phase.APPLYING),
    before("too few requests extend it", scene(facts(), after=24, reading=FEW), STAYS),
    before(
        "too few requests, at the last moment of the extension",
        scene(facts(), after=WINDOW_OVER + EXTENDED, reading=FEW), STAYS,
    ),
    before(
        "too few requests, even extended", scene(facts(), after=WINDOW_OVER + EXTENDED + 1, reading=FEW), Phase.FAILED,
        "Inconclusive: only 49 requests finished in 20 s, 50 are needed. Nothing was changed",
    ),
    before(
        "enough requests in the extension",
        scene(facts(), after=WINDOW_OVER + EXTENDED - 1, reading=measured(90, 45)), Phase.APPLYING,
    ),
    before(
        "no scrape ever", scene(facts(), after=WINDOW_OVER + EXTENDED + 1, reading=NONE_YET), Phase.FAILED,
        "Inconclusive: Prometheus has no scrape of the window",
    ),
    before("a void window", scene(facts(), after=24, reading=WindowVoid("it fell")), Phase.FAILED, "it fell. Nothing"),
    before(
        "the engine restarted", scene(facts(started_at=T0), after=5, reading=NONE_YET), Phase.FAILED, "pod a restarted"
    ),
    before("the pod is gone", scene(after=5, present=()), Phase.FAILED, "pod a is gone"),
    before(
        "another pod took its place", scene(facts("b"), after=5, reading=NONE_YET), Phase.FAILED, "pod a is gone"
    ),
    before(
        "someone changed its config", scene(facts(generation=2), after=24, reading=ENOUGH), Phase.FAILED,
        "someone else changed the config of pod a",
    ),
    before("one pod does not answer just now", scene(facts(), after=24, present=("a", "b"), reading=ENOUGH), STAYS,
           pods=2),
    before(
        "one pod never answers again",
        scene(facts(), after=WINDOW_OVER + EXTENDED + 1, present=("a", "b"), reading=ENOUGH), Phase.FAILED,
        "pod b is not ready or does not answer", pods=2,
    ),
    before("one of two restarted", scene(facts(), facts("b", started_at=T0), reading=NONE_YET), Phase.FAILED,
           "pod b restarted", pods=2),
    before("no engine was ready", scene(after=5), Phase.FAILED, "no engine was ready", pods=0),
]  # fmt: skip

STAYS = Phase.APPLYING
LATE, DRAINED = APPLY_SECONDS + 1, APPLY_SECONDS + EXTENDED + 1
ON_TRIAL = {"tuned": CHECKING}
APPLYING = [
    applying("nothing was written yet", scene(facts(), after=1), STAYS, tuned="checking"),
    applying("another proposal is in force", scene(facts(), after=1, tuned=EARLIER), STAYS, tuned="checking"),
    applying("the record is never written", scene(facts(), after=LATE), Phase.FAILED, "could not be applied in time"),
    applying("the engines do not have the proposal yet", scene(facts(), after=5, **ON_TRIAL), STAYS),
    applying("one of two has taken it", scene(changed(), facts("b"), after=5, **ON_TRIAL), STAYS, pods=2),
    applying("both have taken it", scene(changed(), changed("b"), after=5, **ON_TRIAL), Phase.MEASURING_AFTER, pods=2),
    applying("the old queue is waited for", scene(changed(), after=5, waiting=3.0, **ON_TRIAL), STAYS,
             "until the old queue is empty"),
    applying("an unknown queue counts as one", scene(changed(), after=5, waiting=None, **ON_TRIAL), STAYS),
    applying("a queue that does not empty in time is the new knobs' own",
             scene(changed(), after=DRAINED, waiting=3.0, **ON_TRIAL), Phase.MEASURING_AFTER),
    applying("the time to drain is not over yet",
             scene(changed(), after=DRAINED - 1, waiting=3.0, **ON_TRIAL), STAYS),
    applying("the engines took it late", scene(changed(), after=LATE, **ON_TRIAL), Phase.MEASURING_AFTER),
    applying("the engines never took it", scene(facts(), after=LATE, **ON_TRIAL), Phase.FAILED,
             "the engines did not take it. The old knobs are restored", tuned=None),
    applying("the engines could not take it, and the service says why",
             scene(facts(), after=LATE, service_problem="out of memory", **ON_TRIAL), Phase.FAILED, "out of memory",
             tuned=None),
    applying("the engines never took it, and an earlier proposal comes back",
             scene(facts(), after=LATE, tuned=OVER_EARLIER), Phase.FAILED, tuned=EARLIER),
]  # fmt: skip

STAYS = Phase.MEASURING_AFTER
BETTER, SAME, WORSE = measured(80, 78), measured(80, 44), measured(80, 20)
AFTER = [
    after("the window is open", scene(changed(), after=5, reading=NONE_YET, **ON_TRIAL), STAYS),
    after("better", scene(changed(), after=31, reading=BETTER, **ON_TRIAL), Phase.KEPT, "better: attainment 50.0%",
          tuned="kept"),
    after("better than an earlier proposal", scene(changed(), after=31, reading=BETTER, tuned=OVER_EARLIER), Phase.KEPT,
          tuned="kept"),
    after("the same", scene(changed(), after=31, reading=SAME, **ON_TRIAL), STAYS, "not better beyond its interval",
          tuned=None),
    after("worse", scene(changed(), after=31, reading=WORSE, **ON_TRIAL), STAYS, "not better", tuned=None),
    after("worse than an earlier proposal, which comes back",
          scene(changed(), after=31, reading=WORSE, tuned=OVER_EARLIER), STAYS, "not better", tuned=EARLIER),
    after("too few requests extend it", scene(changed(), after=31, reading=FEW, **ON_TRIAL), STAYS),
    after("too few requests, even extended",
          scene(changed(), after=AFTER_OVER + EXTENDED + 1, reading=FEW, **ON_TRIAL), STAYS,
          "Inconclusive: only 49 requests", tuned=None),
    after("a void window", scene(changed(), after=31, reading=WindowVoid("NaN"), **ON_TRIAL), STAYS,
          "Inconclusive: NaN", tuned=None),
    after("no scrape ever", scene(changed(), after=AFTER_OVER + EXTENDED + 1, reading=NONE_YET, **ON_TRIAL), STAYS,
          "Prometheus has no scrape", tuned=None),
    after("the engine restarted", scene(changed(started_at=T0), after=5, **ON_TRIAL), STAYS, "pod a restarted",
          tuned=None),
    after("the pod is gone", scene(after=5, present=(), **ON_TRIAL), STAYS, "pod a is gone", tuned=None),
    after("someone changed its config", scene(changed(generation=3), after=31, reading=BETTER, **ON_TRIAL), STAYS,
          "someone else changed", tuned=None),
    after("the pod does not answer just now", scene(after=31, present=("a",), reading=BETTER, **ON_TRIAL), STAYS),
    after("the old knobs are wanted but not back yet", scene(changed(wanted=OLD)), STAYS),
    after("no pod answers while the old knobs are restored", scene(present=("a",)), STAYS),
    after("the old knobs are back", scene(facts(generation=3)), Phase.ROLLED_BACK, "The old knobs are back"),
    after("an earlier proposal is back", scene(facts(generation=3), tuned=EARLIER), Phase.ROLLED_BACK),
    after("kept, and the status was lost", scene(changed(), after=31, reading=BETTER, tuned=KEPT), Phase.KEPT,
          "better: attainment 50.0%"),
    after("kept, and the window cannot be read again", scene(changed(), tuned=KEPT), Phase.KEPT,
          "the numbers were lost"),
]  # fmt: skip
WRITTEN = {"checking": RevisionState.CHECKING, "kept": RevisionState.KEPT}


@pytest.mark.parametrize("situation", BEFORE + APPLYING + AFTER, ids=lambda one: f"{one.phase.value}: {one.name}")
def test_a_situation_has_one_next_step(situation: Situation) -> None:
    taken = situation.taken()
    assert taken.status.phase is situation.becomes
    assert situation.says in taken.status.message
    assert taken.write is (situation.tuned is not ...)
    if isinstance(situation.tuned, str):
        assert taken.tuned is not None
        assert (taken.tuned.state, taken.tuned.run_uid) == (WRITTEN[situation.tuned], "run-1")
        assert taken.tuned.knobs == NEW
    elif taken.write:
        assert taken.tuned == situation.tuned
    if situation.becomes is not situation.phase:
        assert taken.status.phase_started_at == situation.seen.now


@pytest.mark.parametrize("situation", BEFORE + APPLYING + AFTER, ids=lambda one: f"{one.phase.value}: {one.name}")
def test_a_kill_between_the_two_writes_changes_no_outcome(situation: Situation) -> None:
    """`tuned` was written and the status lost: the next pass, with the old status, reaches the same outcome."""
    taken = situation.taken()
    if not taken.write:
        return
    back = taken.tuned is None or taken.tuned.run_uid != PROPOSAL.run_uid
    pods = {uid: replace(pod, wanted=OLD if back else NEW) for uid, pod in situation.seen.pods.items()}
    seen = replace(situation.seen, tuned=taken.tuned, pods=pods)
    again = step(status(situation.phase, pods=situation.pods, to_generation=situation.to_generation), seen)
    assert not again.write, "a decision is written only once"
    assert again.status.phase is taken.status.phase
    if back and situation.phase is Phase.MEASURING_AFTER:  # it ends once the engines have the old knobs
        restored = replace(seen, pods={"uid-a": facts(generation=9)})
        assert step(again.status, restored).status.phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("phase", [phase for phase in RolloutPhase if phase.terminal])
def test_an_ended_rollout_does_nothing_more(phase: RolloutPhase) -> None:
    ended = status(phase)
    assert step(ended, scene(after=1e6, reading=WindowVoid("x"), tuned=EARLIER)) == RolloutStep(status=ended)


def test_the_first_window_is_kept_as_counts_and_judged_by_them() -> None:
    first = step(status(Phase.MEASURING_BEFORE), scene(facts(), after=24, reading=measured(83, 41))).status
    assert first.before is not None
    assert first.before.counts() == Counts(good=41, requests=83, seconds=DURATION, output_tokens=664)
    again = RolloutStatus.model_validate(first.to_kube())  # through the API server
    assert again.before == first.before


def test_a_first_window_without_counts_decides_nothing() -> None:
    old = status(Phase.MEASURING_AFTER)
    assert old.before is not None
    bare = old.before.model_copy(update={"good": None, "seconds": None, "output_tokens": None})
    seen = scene(changed(), after=31, reading=BETTER, **ON_TRIAL)
    taken = step(old.model_copy(update={"before": bare}), seen)
    assert taken.write
    assert taken.tuned is None
    assert taken.status.message.startswith("Inconclusive: the counts of the first window are not in the status")


def test_the_record_notes_what_was_in_force_before() -> None:
    pinned = replace(PROPOSAL, override_pinned=True, pinned=OLD)
    seen = scene(facts(), after=1, tuned=EARLIER, proposal=pinned)
    record = step(status(Phase.APPLYING), seen).tuned
    assert record is not None
    assert (record.previous, record.pinned, record.override_pinned) == (OLD, OLD, True)
    assert record.before() == EARLIER


def test_the_new_generations_are_noted_before_the_queue_is_empty() -> None:
    taken = step(status(Phase.APPLYING), scene(changed(generation=5), after=5, waiting=2.0, **ON_TRIAL))
    assert [pod.to_generation for pod in taken.status.pods] == [5]
    assert taken.status.phase_started_at == T0, "the phase's clock keeps running"


@pytest.mark.parametrize(
    ("waited", "becomes"), [(LATE, Phase.APPLYING), (DRAINED, Phase.FAILED)], ids=["still draining", "drain over"]
)
def test_a_pod_that_took_the_proposal_and_is_briefly_silent_is_waited_for(waited: float, becomes: RolloutPhase) -> None:
    taken = step(status(Phase.APPLYING), scene(changed(), after=5, waiting=2.0, **ON_TRIAL))
    silent = scene(after=waited, present=("a",), waiting=None, **ON_TRIAL)
    assert step(taken.status, silent).status.phase is becomes


def play(readings: dict[bool, WindowReading], *, kill: int | None) -> tuple[RolloutPhase, ActiveRevision | None, int]:
    """A whole rollout with an engine that obeys at once. The status of the `kill`th written step is lost."""
    tuned, generation, writes = None, 1, 0
    now, current = T0, begin(scene(facts()))
    for _ in range(60):
        now += timedelta(seconds=6)
        ours = tuned is not None
        pod = facts(generation=generation, config=NEW if ours else OLD, wanted=NEW if ours else OLD)
        seen = scene(pod, now=now, tuned=tuned)
        query = window(current, seen)
        if query is not None:
            done = now.timestamp() >= query.end
            reading = readings[current.phase is Phase.MEASURING_AFTER] if done else NONE_YET
            seen = replace(seen, reading=reading)
        taken = step(current, seen)
        if taken.write:
            generation += (taken.tuned is None) != (tuned is None)
            tuned, writes = taken.tuned, writes + 1
            if writes == kill:
                continue
        current = taken.status
        if current.phase.terminal:
            break
    return current.phase, tuned, writes


@pytest.mark.parametrize("kill", [None, 1, 2])
@pytest.mark.parametrize(
    ("reading", "ends"), [(BETTER, Phase.KEPT), (SAME, Phase.ROLLED_BACK), (WindowVoid("NaN"), Phase.ROLLED_BACK)]
)
def test_a_whole_rollout_ends_in_one_config(reading: WindowReading, ends: RolloutPhase, kill: int | None) -> None:
    phase, tuned, writes = play({False: ENOUGH, True: reading}, kill=kill)
    assert phase is ends
    assert (tuned.state if tuned else None) == (RevisionState.KEPT if ends is Phase.KEPT else None)
    assert writes == 2


def test_an_inconclusive_first_window_writes_nothing() -> None:
    assert play({False: WindowVoid("NaN"), True: BETTER}, kill=None) == (Phase.FAILED, None, 0)


def test_a_window_without_a_number_is_extended_like_an_empty_one() -> None:
    seen = scene(facts(), after=24, reading=measured(math.nan, math.nan))
    assert step(status(Phase.MEASURING_BEFORE), seen).status.phase is Phase.MEASURING_BEFORE
