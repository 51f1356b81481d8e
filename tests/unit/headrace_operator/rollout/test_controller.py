"""One step of a rollout: what is read, what is written, and what a failure leaves behind."""

from datetime import timedelta
from typing import Any

import pytest
from operator_resources import NS, START, service, tuning_run
from operator_world import World

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_api.v1alpha1.tuningrun import RolloutPhase, RolloutStatus, TuningRun
from headrace_client.errors import Unavailable
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.analysis import WindowMeasured, WindowPending
from headrace_operator.rollout.controller import RolloutAdvance, RolloutRequest
from headrace_operator.rollout.revisions import (
    ActiveRevision,
    RevisionState,
    active_revision_config_map,
    read_active_revision,
)
from headrace_operator.service.effective_config import effective_config

KNOBS = {"decode_ratio": 0.5}
RUN = tuning_run()


async def serving(world: World, **spec: Any) -> str:
    world.cluster.put(service(slo={"ttft": {"threshold": "800ms"}, "minRequests": 50}, **spec))
    world.cluster.put(RUN)
    await world.reconcile()
    address = world.run_pod()
    await world.reconcile()
    return address


def request(world: World, status: RolloutStatus | None = None, **more: Any) -> RolloutRequest:
    body = world.cluster.objects[names.INFERENCE_SERVICE_KIND, NS, "chat"]
    subject = InferenceService.read(body)
    active = world.dependencies.rollout.active(NS, "chat")
    wanted = effective_config(subject, active).wanted
    run = TuningRun.parse(RUN)
    run = run.model_copy(update={"status": run.status.model_copy(update={"rollout": status})})
    known = {"run": run, "service": subject, "wanted": wanted, "knobs": KNOBS, "token": "t"}
    return RolloutRequest(**{**known, "measured_against": wanted.values, **more})


async def advance(world: World, status: RolloutStatus | None = None, **more: Any) -> RolloutAdvance:
    return await world.dependencies.rollout.advance(request(world, status, **more))


def stats(requests: float, good: float) -> WindowStats:
    rest = dict.fromkeys(("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max"), 0.1)
    return WindowStats(counts=Counts(good=good, requests=requests, seconds=20.0, output_tokens=100.0), **rest)


def in_force(world: World) -> ActiveRevision | None:
    return read_active_revision(world.cluster.child("ConfigMap", NS, "chat-tuned"))


def revision(state: RevisionState, **more: Any) -> ActiveRevision:
    known = {"tuning_run": "tune", "run_uid": "uid-of-tune", "knobs": KNOBS, "applied_at": START}
    return ActiveRevision(state=state, **{**known, **more})


async def applying(world: World) -> RolloutStatus:
    begun = (await advance(world)).status
    world.clock.advance(60)
    world.metrics.answer = lambda query: WindowMeasured(stats(80, 40))
    return (await advance(world, begun)).status


async def test_a_rollout_begins_by_noting_the_engines_and_changes_nothing(world: World) -> None:
    await serving(world)
    world.cluster.take_writes()
    begun = await advance(world)
    assert (begun.status.phase, begun.moved) == (RolloutPhase.MEASURING_BEFORE, False)
    assert [(pod.name, pod.from_generation) for pod in begun.status.pods] == [("chat-a", 1)]
    assert world.cluster.writes() == []


async def test_a_proposal_that_was_measured_against_another_config_is_not_tried(world: World) -> None:
    await serving(world)
    done = await advance(world, measured_against={"decode_ratio": 0.9})
    assert done.status.phase is RolloutPhase.FAILED
    assert "create a new TuningRun" in done.status.message


async def test_an_open_window_is_waited_for(world: World) -> None:
    await serving(world)
    begun = (await advance(world)).status
    world.metrics.answer = lambda query: WindowPending("the window is open")
    assert await advance(world, begun) == RolloutAdvance(begun)
    assert world.metrics.queries[-1].generations == {"chat-a": 1}


async def test_the_first_window_leads_to_the_proposal_in_force(world: World) -> None:
    await serving(world)
    status = await applying(world)
    assert status.phase is RolloutPhase.APPLYING
    assert in_force(world) is None
    step = await advance(world, status)
    assert step.moved
    active = in_force(world)
    assert active is not None
    assert (active.state, active.knobs, active.previous) == (RevisionState.CHECKING, KNOBS, {"decode_ratio": 0.0})


async def test_a_record_that_could_not_be_written_is_written_in_the_next_step(world: World) -> None:
    await serving(world)
    status = await applying(world)
    world.cluster.faults.extend([Unavailable("HTTP 503", status=503)])
    assert await advance(world, status) == RolloutAdvance(status)
    assert in_force(world) is None
    assert (await advance(world, status)).moved


async def test_the_rollout_waits_for_the_old_queue_to_empty(world: World) -> None:
    await serving(world)
    status = (await advance(world, await applying(world))).status
    await world.reconcile()
    world.metrics.queue = 3.0
    waiting = (await advance(world, status)).status
    assert waiting.phase is RolloutPhase.APPLYING
    assert waiting.pods[0].to_generation == 2
    world.metrics.queue = 0.0
    assert (await advance(world, waiting)).status.phase is RolloutPhase.MEASURING_AFTER


async def test_an_engine_that_does_not_answer_has_not_taken_the_proposal(world: World) -> None:
    address = await serving(world)
    status = (await advance(world, await applying(world))).status
    world.engines.by_address[address].down = True
    assert (await advance(world, status)).status == status


async def test_the_trials_pod_takes_no_part_in_a_rollout(world: World) -> None:
    await serving(world)
    body = world.cluster.child("Pod", NS, "chat-a")
    labels = {**body["metadata"]["labels"], names.TRACK_LABEL: names.TRACK_TRIAL}
    world.cluster.put({**body, "metadata": {**body["metadata"], "name": "t", "uid": "t", "labels": labels}})
    assert [pod.name for pod in (await advance(world)).status.pods] == ["chat-a"]


# A proposal whose run is gone


def gone(body: dict[str, Any]) -> None:
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "run", "restored"),
    [
        (RevisionState.CHECKING, "there", False),
        (RevisionState.CHECKING, "missing", True),
        (RevisionState.CHECKING, "another", True),
        (RevisionState.CHECKING, "going", True),
        (RevisionState.KEPT, "missing", False),
    ],
)
async def test_only_a_proposal_that_no_run_will_judge_is_undone(
    world: World, state: RevisionState, run: str, restored: bool
) -> None:
    await serving(world)
    if run == "missing":
        world.cluster.remove(names.TUNING_RUN_KIND, "tune")
    elif run == "going":
        world.cluster.edit(names.TUNING_RUN_KIND, "tune", gone)
    subject = InferenceService.read(world.cluster.service(NS, "chat") or {})
    before = revision(RevisionState.KEPT, knobs={"decode_ratio": 0.1})
    uid = "uid-of-another" if run == "another" else "uid-of-tune"
    active = revision(state, restore=before.to_json(), run_uid=uid)
    world.cluster.put(active_revision_config_map(subject, active))
    written = await world.dependencies.rollout.restore_abandoned(subject, active)
    assert (written is not None) is restored
    assert in_force(world) == (before if restored else active)


async def test_without_a_proposal_nothing_is_undone(world: World) -> None:
    await serving(world)
    subject = InferenceService.read(world.cluster.service(NS, "chat") or {})
    assert await world.dependencies.rollout.restore_abandoned(subject, None) is None


async def test_a_record_that_is_not_readable_is_not_used(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await serving(world)
    subject = InferenceService.read(world.cluster.service(NS, "chat") or {})
    body = active_revision_config_map(subject, None)
    world.cluster.put({**body, "data": {names.TUNED_KEY: "{}"}})
    assert world.dependencies.rollout.active(NS, "chat") is None
    assert "ConfigMap default/chat-tuned is not used: key tuned.json: tuning_run" in caplog.text


async def test_writing_the_record_restarts_no_pod(world: World) -> None:
    await serving(world)
    template = world.revision()
    await advance(world, await applying(world))
    await world.reconcile()
    assert world.revision() == template
    assert world.clock.now() - START == timedelta(seconds=60)
