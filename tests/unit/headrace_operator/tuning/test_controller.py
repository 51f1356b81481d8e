"""One TuningRun from waiting to its end, and a proposal's rollout through every kill."""

from typing import Any

import pytest
from operator_resources import NS, pod, service, tuning_run
from operator_world import World

from headrace_api import names
from headrace_client.errors import KubeError, Unavailable
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import WindowStats
from headrace_operator.rollout.analysis import WindowMeasured, WindowPending, WindowVoid

SLO = {"ttft": {"threshold": "800ms"}, "minRequests": 50}
PROPOSAL = {"prefillChunkSize": 64, "decodeRatio": 0.5}
IMPROVED = {
    "phase": "Proposed",
    "message": "12 % more goodput",
    "total": 12,
    "baseline": {"knobs": {"prefillChunkSize": 256}, "score": 1.0, "attainment": 0.8},
    "best": {"knobs": PROPOSAL, "score": 1.2, "attainment": 0.97},
    "effect": {"ratio": 1.2, "low": 1.1, "high": 1.3},
    "verdict": "Improved",
    "proposal": {"knobs": PROPOSAL},
}


def stats(requests: float, good: float, seconds: float = 20.0) -> WindowStats:
    rest = dict.fromkeys(("ttft_p50", "ttft_p95", "ttft_p99", "itl_p50", "itl_p95", "itl_p99", "itl_max"), 0.1)
    counts = Counts(good=good, requests=requests, seconds=seconds, output_tokens=100.0)
    return WindowStats(counts=counts, **rest)


async def ready(world: World, **spec: Any) -> str:
    world.cluster.put(service(slo=SLO, **spec))
    await world.reconcile()
    address = world.run_pod()
    await world.reconcile()
    return address


async def searching(world: World, **spec: Any) -> str:
    """Create a run whose Job exists. Returns the stable pod's address."""
    address = await ready(world)
    world.cluster.put(tuning_run(**spec))
    await world.reconcile_run()
    world.run_pod("tune-trial-a", deployment="tune-trial")
    await world.reconcile_run()
    return address


def is_before(query: Any) -> bool:
    return set(query.generations.values()) == {1}


def better(query: Any) -> Any:
    """Windows in which half of 80 requests are good before the rollout, and nearly all after it."""
    return WindowMeasured(stats(80, 40 if is_before(query) else 78))


async def drive(world: World, passes: int = 40) -> str:
    """Run both reconcilers until the run is over. Returns the phase of its rollout."""
    for _ in range(passes):
        for step in (world.reconcile_run, world.reconcile):
            try:
                await step()
            except KubeError:
                continue
        world.clock.advance(5)
        if world.run().get("phase") in ("Completed", "Failed"):
            break
    await world.reconcile()
    return world.run().get("rollout", {}).get("phase", "")


def in_force(world: World, address: str) -> tuple[Any, Any]:
    config = world.engines.by_address[address].config
    return config.prefill_chunk_size, config.decode_ratio


async def test_a_run_waits_for_its_service_and_says_so(world: World) -> None:
    world.cluster.put(tuning_run())
    await world.reconcile_run()
    assert (world.run()["phase"], world.run()["message"]) == ("Pending", "waiting for InferenceService chat")
    world.cluster.put(service(slo=SLO))
    await world.reconcile()
    await world.reconcile_run()
    assert world.run()["message"].startswith("waiting for InferenceService chat to be Ready")


async def test_without_prometheus_a_run_waits(world: World) -> None:
    await ready(world)
    object.__setattr__(world.settings, "prometheus_url", "")
    world.cluster.put(tuning_run())
    await world.reconcile_run()
    assert "prometheus.url" in world.run()["message"]


async def test_the_trial_copies_the_service_and_takes_no_production_traffic(world: World) -> None:
    await ready(world, engine={"config": {"prefillChunkSize": 128}})
    world.cluster.put(tuning_run(overridePinned=True))
    await world.reconcile_run()
    assert world.run()["phase"] == "Preparing"
    trial = world.cluster.objects["Deployment", NS, "tune-trial"]
    labels = trial["spec"]["template"]["metadata"]["labels"]
    assert (labels[names.TRACK_LABEL], labels[names.REVISION_LABEL]) == ("trial", world.revision())
    stable = world.cluster.objects["Service", NS, "chat"]["spec"]["selector"]
    assert not stable.items() <= labels.items()
    assert world.engine_json("tune-trial")["config"] == {"prefill_chunk_size": 128}
    assert world.engine_json("tune-trial")["ceilings"] == world.engine_json()["ceilings"]
    assert trial["metadata"]["ownerReferences"][0]["uid"] == "uid-of-tune"


async def test_the_job_starts_when_the_trial_answers(world: World) -> None:
    await ready(world)
    world.cluster.put(tuning_run())
    await world.reconcile_run()
    address = world.run_pod("tune-trial-a", deployment="tune-trial")
    world.engines.by_address[address].down = True
    await world.reconcile_run()
    assert ("Job", NS, "tune-tuner") not in world.cluster.objects
    assert "no answer" in world.run()["message"]
    world.engines.by_address[address].down = False
    await world.reconcile_run()
    container = world.cluster.objects["Job", NS, "tune-tuner"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == [
        *("python", "-m", "headrace_tuner", "run", "--run", "default/tune"),
        *("--trial-url", "http://127.96.0.10:8000", "--trial-admin-url", "http://127.96.0.10:8001"),
        *("--service-url", "http://127.96.0.10:8000", "--prometheus-url", "http://127.0.0.1:1"),
    ]
    rules = world.cluster.objects["Role", NS, "tune-tuner"]["rules"]
    assert all(len(rule["resourceNames"]) == 1 for rule in rules)


async def test_trials_appear_as_they_end_and_the_trial_pod_goes_with_the_verdict(world: World) -> None:
    await searching(world)
    trial = {"number": 0, "state": "Complete", "knobs": {"prefillChunkSize": 32}, "score": 1.5, "attainment": 0.9}
    void = {"number": 1, "state": "Void", "knobs": {"prefillChunkSize": 48}, "reason": "restart"}
    world.record({"phase": "Searching", "message": "trial 3", "total": 12}, trial, void)
    await world.reconcile_run()
    status = world.run()
    assert (status["phase"], status["message"]) == ("Searching", "trial 3")
    assert status["trials"] == {"done": 2, "failed": 1, "total": 12, "progress": "2/12"}
    assert [item["number"] for item in status["trialLog"]] == [0, 1]
    world.record({**IMPROVED, "verdict": "KeepBaseline", "proposal": None, "phase": "Completed"})
    await world.reconcile_run()
    assert (world.run()["phase"], world.run()["verdict"]) == ("Completed", "KeepBaseline")
    assert ("Deployment", NS, "tune-trial") not in world.cluster.objects


async def test_a_second_pass_over_a_run_writes_nothing(world: World) -> None:
    await searching(world)
    world.record({"phase": "Searching", "message": "trial 3", "total": 12})
    await world.reconcile_run()
    world.cluster.take_writes()
    await world.reconcile_run()
    assert world.cluster.writes() == []


@pytest.mark.parametrize("policy", ["Propose", "Never"])
async def test_a_proposal_that_is_not_to_be_applied_ends_the_run(world: World, policy: str) -> None:
    address = await searching(world, apply=policy)
    world.record(IMPROVED)
    assert await drive(world) == ""
    assert (world.run()["phase"], world.run()["proposal"]["knobs"]) == ("Completed", PROPOSAL)
    assert in_force(world, address) == (None, 0.0)


async def test_a_better_proposal_is_kept_and_no_pod_restarts(world: World) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = better
    revision = world.revision()
    assert await drive(world) == "Kept"
    rollout = world.run()["rollout"]
    assert (rollout["before"]["attainment"], rollout["after"]["attainment"]) == (0.5, 0.975)
    assert [(item["uid"], item["fromGeneration"], item["toGeneration"]) for item in rollout["pods"]] == [
        ("uid-of-chat-a", 1, 2)
    ]
    assert in_force(world, address) == (64, 0.5)
    assert world.revision() == revision
    assert world.status()["tuned"]["tuningRun"] == "tune"
    assert world.engine_json()["config"] == {"prefill_chunk_size": 64, "decode_ratio": 0.5}
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (WindowMeasured(stats(80, 44)), "not better beyond its interval"),
        (WindowMeasured(stats(80, 20)), "not better"),
        (WindowMeasured(stats(3, 3)), "Inconclusive: only 3"),
        (WindowVoid("reset"), "Inconclusive: reset"),
        (WindowPending("stale"), "Inconclusive: Prometheus"),
    ],
)
async def test_a_proposal_that_does_not_prove_better_is_rolled_back(world: World, after: Any, words: str) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: better(query) if is_before(query) else after
    assert await drive(world) == "RolledBack"
    assert words in world.run()["rollout"]["message"]
    assert in_force(world, address) == (None, 0.0)
    assert "tuned" not in world.status()
    assert world.run()["phase"] == "Completed"


@pytest.mark.parametrize(
    "reading", [WindowVoid("NaN"), WindowPending("stale"), WindowMeasured(stats(0, 0))], ids=["nan", "stale", "empty"]
)
async def test_without_a_first_window_nothing_is_changed(world: World, reading: Any) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: reading
    assert await drive(world) == "Failed"
    assert "Nothing was changed" in world.run()["rollout"]["message"]
    assert world.engines.patches == []
    assert in_force(world, address) == (None, 0.0)


@pytest.mark.parametrize("good_after", [78, 20], ids=["better", "worse"])
@pytest.mark.parametrize("killed_after", range(14))
@pytest.mark.parametrize("write_lost", [False, True])
async def test_a_killed_operator_ends_in_exactly_one_known_config(
    world: World, good_after: int, killed_after: int, write_lost: bool
) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: WindowMeasured(stats(80, 40 if is_before(query) else good_after))
    for number in range(killed_after):
        if write_lost and number == killed_after - 1:
            world.cluster.faults.extend([None, Unavailable("killed here", status=503)])
        await drive(world, 1)
    world.cluster.faults.clear()
    world.restart_operator()
    phase = await drive(world)
    assert (phase, in_force(world, address)) in (
        [("Kept", (64, 0.5))] if good_after == 78 else [("RolledBack", (None, 0.0))]
    )
    assert len(world.engines.patches) <= 3


async def test_an_engine_restart_while_checking_restores(world: World) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: better(query) if is_before(query) else WindowPending("open")
    while world.run().get("phase") != "Checking":
        await drive(world, 1)
    world.engines.by_address[address].started_at += 100
    assert await drive(world) == "RolledBack"
    assert "restarted" in world.run()["rollout"]["message"]


async def test_an_engine_that_is_silent_for_a_moment_changes_nothing(world: World) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = better
    while world.run().get("phase") != "Checking":
        await drive(world, 1)
    world.engines.by_address[address].down = True
    await drive(world, 3)
    assert world.run()["phase"] == "Checking"
    world.engines.by_address[address].down = False
    assert await drive(world) == "Kept"


@pytest.mark.parametrize("queue", [7.0, None])
async def test_requests_queued_before_do_not_count_against_the_proposal(world: World, queue: float | None) -> None:
    await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = better
    world.metrics.queue = queue
    await drive(world, 25)
    next(iter(world.engines.by_address.values())).down = True  # silent for a moment, long after it took the change
    await drive(world, 1)
    next(iter(world.engines.by_address.values())).down = False
    assert world.run()["rollout"]["phase"] == "Applying"
    assert world.run()["message"] == "waiting until the old queue is empty"
    world.metrics.queue = 0.0
    assert await drive(world) == "Kept"


async def test_a_queue_that_never_empties_does_not_hold_up_a_rollout_forever(world: World) -> None:
    await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: better(query) if is_before(query) else WindowMeasured(stats(80, 40))
    world.metrics.queue = 7.0
    assert await drive(world, 80) == "RolledBack"


async def test_a_pod_lost_during_the_first_window_ends_the_rollout_with_nothing_changed(world: World) -> None:
    await searching(world, apply="Auto")
    world.record(IMPROVED)
    await drive(world, 1)
    world.cluster.remove("Pod", "chat-a")
    assert await drive(world) == "Failed"
    assert "pod chat-a is gone. Nothing was changed" in world.run()["rollout"]["message"]


async def test_a_refused_proposal_is_restored_with_the_engines_reason(world: World) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = better
    while world.run().get("rollout", {}).get("phase") != "Applying":
        await drive(world, 1)
    world.engines.by_address[address].refuse = "no"
    assert await drive(world) == "Failed"
    assert "refuses the config" in world.run()["rollout"]["message"]
    world.engines.by_address[address].refuse = ""
    world.clock.advance(61)
    await world.reconcile()
    assert in_force(world, address) == (None, 0.0)
    assert world.condition("Ready")["status"] == "True"


async def test_a_run_deleted_while_checking_leaves_the_old_knobs(world: World) -> None:
    address = await searching(world, apply="Auto")
    world.record(IMPROVED)
    world.metrics.answer = lambda query: better(query) if is_before(query) else WindowPending("open")
    while world.run().get("phase") != "Checking":
        await drive(world, 1)
    assert in_force(world, address) == (64, 0.5)
    world.cluster.remove(names.TUNING_RUN_KIND, "tune")
    for _ in range(3):
        await world.reconcile()
    assert in_force(world, address) == (None, 0.0)


async def test_a_service_deleted_midway_fails_the_run_and_stops_its_job(world: World) -> None:
    await searching(world)
    world.cluster.remove(names.INFERENCE_SERVICE_KIND, "chat")
    await world.reconcile_run()
    assert (world.run()["phase"], world.run()["message"]) == ("Failed", "InferenceService chat was deleted")
    left = {key[0] for key in world.cluster.objects if "tune" in key[2]}
    assert not left & {"Deployment", "Job"}


async def test_a_failed_job_is_explained_by_its_pods_last_message(world: World) -> None:
    await searching(world)
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.TUNING_RUN_LABEL: "tune"}
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "cannot reach the engine"}}
    body = pod("tune-tuner-x", labels, phase="Failed")
    body["status"]["containerStatuses"] = [{"name": "tuner", "restartCount": 0, "state": ended}]
    world.cluster.put(body)
    failed = {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}
    world.cluster.edit("Job", "tune-tuner", lambda job: job.update(status={"conditions": [failed]}))
    await world.reconcile_run()
    assert world.run()["phase"] == "Failed"
    assert "cannot reach the engine" in world.run()["message"]
    complete = next(item for item in world.run()["conditions"] if item["type"] == "Complete")
    assert complete["reason"] == "JobFailed"


@pytest.mark.parametrize(
    ("config", "run", "reason"),
    [
        ({"prefillChunkSize": 64}, {}, "PinnedKnob"),
        ({}, {"knobs": [{"name": "maxNumSeqs", "min": 1.0, "max": 512.0}]}, "InvalidConfig"),
        ({}, {"knobs": [{"name": "maxNumBatchedTokens", "choices": [4096]}]}, "InvalidConfig"),
    ],
)
async def test_a_run_that_can_never_work_is_refused_at_once(
    world: World, config: dict[str, Any], run: dict[str, Any], reason: str
) -> None:
    await ready(world, engine={"config": config})
    world.cluster.put(tuning_run(**run))
    await world.reconcile_run()
    assert world.run()["phase"] == "Failed"
    assert world.run()["conditions"][0]["reason"] == reason
    assert ("Deployment", NS, "tune-trial") not in world.cluster.objects


async def test_a_second_run_waits_for_the_first(world: World) -> None:
    await searching(world)
    world.cluster.put(tuning_run("later"))
    await world.reconcile_run("later")
    assert world.run("later")["message"] == "waiting for TuningRun tune, which tunes InferenceService chat first"


async def test_a_changed_template_ends_the_study(world: World) -> None:
    await searching(world)
    change = {"engine": {"config": {"blockSize": 32}}}
    world.cluster.edit(names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(change))
    await world.reconcile()
    await world.reconcile_run()
    assert world.run()["phase"] == "Failed"
    assert "pod template changed" in world.run()["message"]


async def test_a_config_changed_since_the_study_is_not_overruled(world: World) -> None:
    address = await searching(world, apply="Auto")
    change = {"engine": {"config": {"decodeRatio": 0.1}}}
    world.cluster.edit(names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(change))
    world.record(IMPROVED)
    assert await drive(world) == "Failed"
    assert "config changed since the study began" in world.run()["rollout"]["message"]
    assert in_force(world, address) == (None, 0.1)


async def test_a_later_edit_of_an_overridden_knob_wins(world: World) -> None:
    await ready(world, engine={"config": {"prefillChunkSize": 256, "decodeRatio": 0.0}})
    address = next(iter(world.engines.by_address))
    world.cluster.put(tuning_run(apply="Auto", overridePinned=True))
    await world.reconcile_run()
    world.run_pod("tune-trial-a", deployment="tune-trial")
    await world.reconcile_run()
    world.record(IMPROVED)
    world.metrics.answer = better
    assert await drive(world) == "Kept"
    assert in_force(world, address) == (64, 0.5)
    change = {"engine": {"config": {"prefillChunkSize": 128, "decodeRatio": 0.0}}}
    world.cluster.edit(names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(change))
    await world.reconcile()
    assert in_force(world, address) == (128, 0.5)
