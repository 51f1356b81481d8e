"""One InferenceService from its first sight to serving, its edits and its failures."""

import json
from typing import Any

import pytest
from operator_cluster import FAULTS
from operator_resources import NS, pod, service
from operator_world import World

from headrace_api import names
from headrace_api.engine_exit import EngineExit, ExitKind
from headrace_client.errors import Conflict, EngineUnavailable, KubeError
from headrace_core.knobs.resolve import resolve
from headrace_operator.engines.base import ConfigChange
from headrace_operator.service.controller import SOON


async def serving(world: World, **spec: object) -> str:
    """Create a service with one ready pod that has served a token. Returns the pod's address."""
    world.cluster.put(service(**spec))
    await world.reconcile()
    address = world.run_pod()
    await world.reconcile()
    world.cluster.take_writes()
    return address


def set_config(world: World, **config: object) -> None:
    world.cluster.edit(
        names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(engine={"config": config})
    )


async def test_first_pass_makes_the_children_in_the_order_in_which_a_pod_needs_them(world: World) -> None:
    world.cluster.put(service())
    await world.reconcile()
    applied = [call[1:] for call in world.cluster.calls if call[0] == "apply"]
    assert applied == [
        ("Secret", "chat-admin"),
        ("ConfigMap", "chat-engine"),
        ("Service", "chat"),
        ("Deployment", "chat"),
    ]
    assert world.condition("SpecValid")["status"] == "True"
    assert world.condition("Ready")["status"] == "False"
    assert world.condition("Progressing")["reason"] == "RollingOut"


async def test_ready_needs_a_ready_pod_and_a_token_through_the_service(world: World) -> None:
    world.cluster.put(service())
    await world.reconcile()
    world.run_pod()
    world.engines.token_fault = EngineUnavailable("connection refused")
    again = await world.reconcile()
    assert (world.condition("EngineReady")["status"], world.condition("Ready")["reason"]) == ("True", "NotRoutable")
    assert again.after == SOON
    world.engines.token_fault = None
    await world.reconcile()
    assert world.condition("Ready")["reason"] == "Serving"
    assert world.condition("Progressing")["reason"] == "UpToDate"
    assert world.engines.tokens == ["http://127.96.0.10:8000"]


async def test_second_pass_writes_nothing_and_asks_for_no_token(world: World) -> None:
    await serving(world)
    reads, tokens = world.engines.reads, len(world.engines.tokens)
    await world.reconcile()
    await world.reconcile()
    assert world.cluster.writes() == []
    assert (world.engines.reads, len(world.engines.tokens)) == (reads, tokens)


async def test_a_new_operator_writes_only_what_it_may_not_read(world: World) -> None:
    await serving(world)
    world.restart_operator()
    await world.reconcile()
    assert world.cluster.writes() == [("apply", "Secret", "chat-admin")]


async def test_status_shows_config_revision_endpoint_and_selector(world: World) -> None:
    await serving(world, engine={"config": {"prefillChunkSize": 64}})
    status = world.status()
    assert status["endpoint"] == {"url": "http://127.96.0.10:8000"}
    assert status["selector"] == "headrace.dev/service=chat,headrace.dev/track=stable"
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["config"]["prefillChunkSize"] == 64
    assert status["templateRevision"] == world.revision()
    assert status["observedGeneration"] == 1


async def test_a_hot_knob_reaches_the_engine_without_a_new_pod(world: World) -> None:
    address = await serving(world)
    revision, engine = world.revision(), world.engines.by_address[address]
    set_config(world, prefillChunkSize=32, decodeRatio=0.5)
    await world.reconcile()
    assert world.engines.patches == [(address, {"prefill_chunk_size": 32, "decode_ratio": 0.5})]
    assert (world.revision(), engine.generation) == (revision, 2)
    assert engine.revision == world.engine_json()["revision"] == world.status()["revision"]
    assert world.condition("Ready")["status"] == "True"


async def test_removing_a_hot_knob_restores_the_default_of_the_engines_device(world: World) -> None:
    address = await serving(world, engine={"config": {"maxNumBatchedTokens": 1024}})
    set_config(world)
    await world.reconcile()
    assert world.engines.by_address[address].config.max_num_batched_tokens == 256


async def test_a_boot_knob_rolls_the_deployment_and_is_not_ready_before_the_new_pod(world: World) -> None:
    await serving(world)
    old = world.revision()
    set_config(world, blockSize=32)
    await world.reconcile()
    assert world.revision() != old
    assert world.engines.patches == []
    assert world.condition("Ready")["status"] == "False"
    assert world.condition("Progressing") | {"lastTransitionTime": ""} == {
        "type": "Progressing",
        "status": "True",
        "reason": "RollingOut",
        "message": f"0 of 1 pods ready at revision {world.revision()}; 1 of an older revision still there",
        "observedGeneration": 2,
        "lastTransitionTime": "",
    }
    world.cluster.remove("Pod", "chat-a")
    world.run_pod("chat-b")
    await world.reconcile()
    assert world.condition("Ready")["reason"] == "Serving"
    assert len(world.engines.tokens) == 2  # a new revision proves itself again


async def test_a_refused_knob_is_a_condition_and_is_tried_again(world: World) -> None:
    address = await serving(world)
    world.engines.by_address[address].refuse = "not today"
    set_config(world, decodeRatio=0.5)
    again = await world.reconcile()
    assert world.condition("EngineReady")["reason"] == "ConfigRefused"
    assert "not today" in world.condition("Ready")["message"]
    assert again.after
    world.engines.by_address[address].refuse = ""
    await world.reconcile()
    assert world.condition("Ready")["status"] == "True"


async def test_an_unreachable_admin_port_matters_only_while_a_change_is_due(world: World) -> None:
    address = await serving(world)
    world.engines.by_address[address].down = True
    world.clock.advance(120)
    await world.reconcile()
    assert world.condition("Ready")["status"] == "True"
    set_config(world, decodeRatio=0.5)
    await world.reconcile()
    assert world.condition("EngineReady")["reason"] == "EngineUnreachable"


async def test_drift_is_corrected_within_a_minute(world: World) -> None:
    address = await serving(world)
    engine = world.engines.by_address[address]
    change = ConfigChange(knobs={"decode_ratio": 0.9}, slo=None, revision="x", if_generation=1)
    await world.engines.change(address, change, token="")
    world.clock.advance(61)
    await world.reconcile()
    assert engine.config.decode_ratio == 0.0


@pytest.mark.parametrize(
    ("slo", "wanted"),
    [({"ttft": {"threshold": "800ms"}}, 0.8), ({"ttft": {"threshold": "2s"}, "attainment": 0.9}, 2.0), (None, None)],
)
async def test_another_slo_reaches_running_engines_without_a_restart(world: World, slo: Any, wanted: Any) -> None:
    address = await serving(world, slo={"ttft": {"threshold": "1s"}})
    before = world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"]
    world.cluster.edit(names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(slo=slo))
    await world.reconcile()
    engine = world.engines.by_address[address]
    assert (engine.slo and engine.slo["ttft_seconds"], engine.generation) == (wanted, 2)
    assert world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"] == before
    assert world.condition("Ready")["status"] == "True"


async def test_an_slo_that_someone_else_set_is_corrected(world: World) -> None:
    address = await serving(world)
    engine = world.engines.by_address[address]
    engine.slo = {"ttft_seconds": 1.0}
    world.clock.advance(61)
    await world.reconcile()
    assert (engine.slo, engine.generation) == (None, 2)


async def test_an_engine_that_started_with_lower_ceilings_is_not_ready(world: World) -> None:
    address = await serving(world)
    engine = world.engines.by_address[address]
    engine.config = resolve({}, ceilings={**engine.config.ceilings, "max_num_batched_tokens": 300})
    world.clock.advance(61)
    await world.reconcile()
    assert "older config (ceiling of max_num_batched_tokens)" in world.condition("EngineReady")["message"]


async def test_a_pretend_gpu_is_named(world: World) -> None:
    world.cluster.put(service(resources={"gpu": {"count": 1}}))
    await world.reconcile()
    world.run_pod(pretend_gpu=True)
    await world.reconcile()
    assert "pretend GPU" in world.condition("Ready")["message"]
    assert world.status()["config"]["maxNumBatchedTokens"] == 256  # the engine's device decides, and it is a CPU


async def test_a_gpu_that_is_not_used_is_named(world: World) -> None:
    world.cluster.put(service(resources={"gpu": {"count": 1}}))
    await world.reconcile()
    world.run_pod()
    await world.reconcile()
    assert world.condition("Ready")["message"] == "1 of 1 engines answer, on cpu although a GPU was asked for"


async def test_a_missing_model_is_named_and_heals_when_the_path_is_corrected(world: World) -> None:
    world.cluster.put(service(model={"uri": "file:///models/typo"}))
    await world.reconcile()
    said = EngineExit(ExitKind.MODEL_NOT_FOUND, "model /models/typo is not there").to_text()
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": said}}
    container = {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    labels = world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"]["metadata"]["labels"]
    world.cluster.put(pod("chat-a", labels, container=container))
    world.settle()
    await world.reconcile()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelNotFound")
    assert "/models/typo" in ready["message"]
    world.cluster.edit(
        names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(model={"uri": "file:///models/tiny"})
    )
    await world.reconcile()
    assert world.condition("EngineReady")["reason"] == "PodsPending"  # the crashed pod is of an older revision
    world.cluster.remove("Pod", "chat-a")
    world.run_pod("chat-b")
    await world.reconcile()
    assert world.condition("Ready")["status"] == "True"


async def test_an_unschedulable_pod_is_explained_by_the_schedulers_message(world: World) -> None:
    world.cluster.put(service(resources={"gpu": {"count": 4}}))
    await world.reconcile()
    labels = world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"]["metadata"]["labels"]
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    world.cluster.put(pod("chat-a", labels, phase="Pending", conditions=[condition], containerStatuses=[]))
    await world.reconcile()
    for type_ in ("EngineReady", "Ready", "Progressing"):
        assert words in world.condition(type_)["message"]
    assert world.condition("EngineReady")["reason"] == "Unschedulable"


async def test_the_revision_of_a_hub_model_reaches_the_engine(world: World) -> None:
    world.cluster.put(service(model={"uri": "hf://org/name", "revision": "v2"}))
    await world.reconcile()
    command = world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[3:7] == ["serve", "org/name", "--revision", "v2"]


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"model": {"uri": "s3://bucket/model"}}, "UnsupportedModel", "file:///PATH"),
        ({"model": {"uri": "file://relative"}}, "UnsupportedModel", "file:///relative"),
        ({"model": {"uri": "file:///models/m", "revision": "main"}}, "UnsupportedModel", "spec.model.revision"),
        ({"engine": {"config": {"prefillChunkSize": 9999}}}, "InvalidConfig", "prefill_chunk_size: 9999 exceeds"),
        ({"engine": {"config": {"maxNumBatchedTokens": 100, "maxNumSeqs": 200}}}, "InvalidConfig", "200"),
        ({"engine": {"env": [{"name": "POD_IP", "value": "x"}]}}, "InvalidSpec", "POD_IP"),
        ({"engine": {"config": {"blockSize": -1}}}, "InvalidSpec", "spec.engine.config.blockSize"),
    ],
)
async def test_a_bad_spec_is_a_condition_and_leaves_what_runs_alone(
    world: World, change: dict[str, object], reason: str, words: str
) -> None:
    await serving(world)
    world.cluster.edit(names.INFERENCE_SERVICE_KIND, "chat", lambda body: body["spec"].update(change))
    await world.reconcile()
    found = world.condition("SpecValid")
    assert (found["status"], found["reason"]) == ("False", reason)
    assert words in found["message"]
    assert {call[:2] for call in world.cluster.writes()} == {("status", names.INFERENCE_SERVICE_KIND)}
    assert world.condition("Ready")["reason"] == "SpecNotValid"
    assert world.condition("EngineReady")["status"] == "True"


async def test_another_owners_object_of_the_same_name_is_not_taken_over(world: World) -> None:
    world.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-engine", "namespace": NS}})
    world.cluster.put(service())
    await world.reconcile()
    assert world.condition("EngineReady")["reason"] == "NameTaken"
    assert "data" not in world.cluster.objects["ConfigMap", NS, "chat-engine"]
    assert ("Deployment", NS, "chat") not in world.cluster.objects
    world.cluster.remove("ConfigMap", "chat-engine")
    await world.reconcile()
    assert ("Deployment", NS, "chat") in world.cluster.objects


async def test_a_changed_child_is_set_right(world: World) -> None:
    await serving(world)
    world.cluster.edit("Deployment", "chat", lambda body: body["spec"].update(replicas=7))
    await world.reconcile()
    assert world.cluster.objects["Deployment", NS, "chat"]["spec"]["replicas"] == 1
    world.cluster.remove("Service", "chat")
    await world.reconcile()
    assert ("Service", NS, "chat") in world.cluster.objects


async def test_scaled_to_zero_is_not_ready_and_not_in_progress(world: World) -> None:
    world.cluster.put(service(replicas=0))
    await world.reconcile()
    world.settle()
    await world.reconcile()
    assert world.condition("Ready")["reason"] == "ScaledToZero"
    assert world.condition("Progressing")["status"] == "False"


async def test_deleting_the_service_leaves_the_rest_to_the_garbage_collector(world: World) -> None:
    await serving(world)
    world.cluster.remove(names.INFERENCE_SERVICE_KIND, "chat")
    await world.reconcile()
    assert world.cluster.writes() == []
    assert [key for key in world.cluster.objects if key[0] not in ("Event", "Pod")] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("position", range(6))
async def test_any_failed_call_heals_in_the_next_passes(world: World, fault: KubeError, position: int) -> None:
    world.cluster.put(service())
    world.cluster.faults.extend([None] * position + [fault])
    for _ in range(4):
        try:
            await world.reconcile()
        except KubeError:
            continue
    world.run_pod()
    await world.reconcile()
    assert world.condition("Ready")["status"] == "True"
    assert not world.cluster.faults


async def test_a_refused_write_is_reported(world: World) -> None:
    world.cluster.put(service())
    world.cluster.faults.extend([None, None, None, KubeError("quota exceeded", status=403)])
    again = await world.reconcile()
    assert again.failed
    assert world.condition("Progressing")["reason"] == "APIError"
    assert "quota exceeded" in world.condition("Progressing")["message"]


async def test_a_lost_status_write_is_raised_and_repeated(world: World) -> None:
    await serving(world)
    set_config(world, decodeRatio=0.25)
    world.cluster.faults.extend([None, Conflict("changed meanwhile", status=409)])
    with pytest.raises(Conflict):
        await world.reconcile()
    await world.reconcile()
    assert world.status()["config"]["decodeRatio"] == 0.25


async def test_each_transition_is_one_event_even_across_restarts(world: World) -> None:
    await serving(world)
    world.restart_operator()
    await world.reconcile()
    messages = [body["message"] for key, body in world.cluster.objects.items() if key[0] == "Event"]
    assert len([text for text in messages if text.startswith("Ready=True")]) == 1
    events = [body for key, body in world.cluster.objects.items() if key[0] == "Event"]
    assert all(body["involvedObject"]["uid"] == "uid-of-chat" for body in events)


async def test_the_admin_token_is_derived_and_the_engine_gets_it_from_the_secret(world: World) -> None:
    await serving(world)
    secret = world.cluster.objects["Secret", NS, "chat-admin"]
    assert json.dumps(secret).count(world.settings.root_token) == 0
    container = world.cluster.objects["Deployment", NS, "chat"]["spec"]["template"]["spec"]["containers"][0]
    variable = next(item for item in container["env"] if item["name"] == names.ADMIN_TOKEN_ENV)
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "chat-admin", "key": "token"}
