"""What every kind of engine must keep, so that the rest of the operator need not know which one it runs.

The last part starts the real engine exactly as its pod would: the rendered command and environment, the files of its
ConfigMap, on the fixed ports at an address of its own.
"""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from live_engine import stop

from headrace_api.engine_exit import EngineExit, ExitKind
from headrace_api.v1alpha1.inferenceservice import EngineKind, InferenceService
from headrace_client.errors import EngineCallError, EngineDenied, EngineRefused, EngineUnavailable, StaleGeneration
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import HOT, KNOBS, Knob, KnobClass, KnobKind
from headrace_operator.cluster.observe import LastExit
from headrace_operator.engines.base import (
    ConfigChange,
    EngineApi,
    EngineDefinition,
    EngineLaunch,
    LiveConfigApi,
    SloChange,
    WantedConfig,
)
from headrace_operator.engines.registry import DEFINITIONS, engine_apis
from headrace_operator.rollout.config_push import boot_difference, change_to
from headrace_operator.service.effective_config import effective_config
from headrace_operator.service.objects import service_objects
from headrace_operator.settings import Images

ADDRESS = "127.83.0.7"
STUB = "127.83.0.8"
TOKEN = "0123456789abcdef"
IMAGES = Images(engine="headrace/engine:test", tuner="headrace/tuner:test")
LAUNCH = EngineLaunch(
    model="/models/tiny", model_revision=None, served_name="chat", config_map="chat-engine", admin_secret="chat-admin"
)
SLO = {"ttft_seconds": 5.0, "itl_seconds": 2.0, "itl_percentile": 99.0, "tpot_seconds": None, "e2e_seconds": None}
WANTED = WantedConfig(
    values={"max_num_batched_tokens": 256, "max_num_seqs": 8, "kv_cache_bytes": 1 << 22},
    ceilings={"max_num_batched_tokens": 512, "max_num_seqs": 8},
    slo=SLO,
    on_gpu=False,
    revision="as-started",
)
OTHER_VALUES = {KnobKind.INT: 32, KnobKind.FLOAT: 0.5, KnobKind.BOOL: False}


@pytest.fixture(params=list(EngineKind))
def kind(request: pytest.FixtureRequest) -> EngineKind:
    return request.param


@pytest.fixture
def definition(kind: EngineKind) -> EngineDefinition:
    return DEFINITIONS[kind]


def service(kind: EngineKind, **engine: Any) -> InferenceService:
    return InferenceService.parse(
        {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "default", "uid": "u"},
            "spec": {"model": {"uri": "file:///models/tiny"}, "engine": {"kind": kind.value, **engine}},
        }
    )


def value_of(knob: Knob) -> Any:
    if knob.kind is KnobKind.CHOICE:
        return knob.choices[-1]
    value = OTHER_VALUES[knob.kind]
    return value if knob.minimum is None else max(value, type(value)(knob.minimum))


# The pod


def test_a_kind_is_registered_under_its_own_name(kind: EngineKind, definition: EngineDefinition) -> None:
    assert definition.kind is kind
    assert definition.image(IMAGES)
    assert definition.startup_seconds > 0


def test_what_a_pod_refers_to_is_in_it(kind: EngineKind) -> None:
    subject = service(kind)
    made = service_objects(subject, effective_config(subject, None).wanted, images=IMAGES, token=TOKEN).objects
    by_kind = {body["kind"]: body for body in made}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = [volume["name"] for volume in pod["volumes"]]
    assert len(volumes) == len(set(volumes))
    assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    startup = container["startupProbe"]
    deadline = by_kind["Deployment"]["spec"]["progressDeadlineSeconds"]
    assert startup["periodSeconds"] * startup["failureThreshold"] < deadline
    config_maps = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert config_maps == {by_kind["ConfigMap"]["metadata"]["name"]}


def test_the_model_and_its_name_are_on_the_command_line(definition: EngineDefinition) -> None:
    launch = replace(LAUNCH, model="org/model", model_revision="v2")
    command = definition.container(launch).command
    assert {"org/model", "v2", "chat"} <= set(command)
    assert "v2" not in definition.container(LAUNCH).command


@pytest.mark.parametrize(("address", "host"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_addresses_are_urls(definition: EngineDefinition, address: str, host: str) -> None:
    ports = {port["port"] for port in definition.service_ports()}
    for url in (definition.url(address), definition.admin_url(address)):
        found = re.fullmatch(rf"http://{re.escape(host)}:(\d+)", url)
        assert found
        assert int(found[1]) in ports


# The config


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_each_knob_reaches_the_config_or_is_refused_by_name(
    kind: EngineKind, definition: EngineDefinition, knob: Knob
) -> None:
    value = value_of(knob)
    subject = service(kind, config={knob.camel: value})
    if definition.knob_class(knob.name) is None:
        with pytest.raises(ConfigError, match=knob.name):
            effective_config(subject, None)
        return
    wanted = effective_config(subject, None).wanted
    assert definition.config_values(definition.config_data(wanted)) == {knob.name: value}


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_only_what_is_not_hot_needs_another_process(definition: EngineDefinition, knob: Knob) -> None:
    changed = replace(WANTED, values={**WANTED.values, knob.name: value_of(knob)}, revision="other", slo=None)
    same = definition.boot_values(changed) == definition.boot_values(WANTED)
    assert same is (definition.knob_class(knob.name) in (HOT, None))


def test_other_ceilings_need_another_process(definition: EngineDefinition) -> None:
    raised = replace(WANTED, ceilings={name: value + 1 for name, value in WANTED.ceilings.items()})
    assert definition.boot_values(raised) != definition.boot_values(WANTED)


def test_only_hot_knobs_have_ceilings_and_a_pinned_value_raises_its_own(definition: EngineDefinition) -> None:
    plain = definition.ceilings({}, on_gpu=False)
    assert {definition.knob_class(name) for name in plain} <= {KnobClass.HOT}
    for name, value in plain.items():
        assert definition.ceilings({name: value * 2}, on_gpu=False) == {**plain, name: value * 2}
        assert definition.ceilings({name: 1}, on_gpu=False) == plain


# Its end


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (EngineExit(ExitKind.MODEL_NOT_FOUND, "no /x").to_text(), EngineExit(ExitKind.MODEL_NOT_FOUND, "no /x")),
        ("loading\nKeyError: 'x'", EngineExit(ExitKind.OTHER, "KeyError: 'x'")),
        ("", EngineExit(ExitKind.OTHER, "")),
    ],
)
def test_its_end_is_read(definition: EngineDefinition, message: str, said: EngineExit) -> None:
    assert definition.exit(LastExit(code=2, reason="Error", message=message)) == said


# Calls that go wrong


@pytest.fixture
async def api(kind: EngineKind) -> AsyncIterator[EngineApi]:
    async with aiohttp.ClientSession() as session:
        yield engine_apis(session)[kind]


@pytest.fixture
async def live(api: EngineApi) -> LiveConfigApi:
    if api.live is None:
        pytest.skip("this kind cannot be reconfigured while it runs")
    return api.live


async def test_nobody_there_is_unavailable(definition: EngineDefinition, api: EngineApi) -> None:
    with pytest.raises(EngineUnavailable, match="no answer"):
        await api.one_token(definition.url(STUB), model="chat")
    if api.live is not None:
        with pytest.raises(EngineUnavailable):
            await api.live.read(STUB, token=TOKEN)


@pytest.mark.parametrize(("status", "text"), [(500, "oops"), (404, "{}"), (200, "not JSON"), (200, "[]"), (200, "{}")])
async def test_a_wrong_answer_is_an_error_of_the_call(
    definition: EngineDefinition, live: LiveConfigApi, status: int, text: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, STUB, int(definition.admin_url(STUB).rpartition(":")[2])).start()
    try:
        with pytest.raises(EngineCallError):
            await live.read(STUB, token=TOKEN)
    finally:
        await runner.cleanup()


# The real engine


@dataclass(frozen=True)
class Pod:
    """One engine process, started as a kubelet would."""

    kind: EngineKind
    probes: dict[str, str]  # path by name of the probe


def rendered(definition: EngineDefinition, model: Path, folder: Path) -> tuple[list[str], dict[str, str], list[Any]]:
    """Command, environment and probes; mounts of the ConfigMap lie in `folder`."""
    ours = definition.container(replace(LAUNCH, model=str(model)))
    config_maps = {volume["name"] for volume in ours.volumes if "configMap" in volume}
    moved = {}
    for mount in ours.mounts:
        if mount["name"] in config_maps:
            moved[mount["mountPath"]] = str(folder)
            for name, content in definition.config_data(WANTED).items():
                (folder / name).write_text(content)
    env = {variable["name"]: ADDRESS if "fieldRef" in variable["valueFrom"] else TOKEN for variable in ours.env}
    command = [sys.executable if part == "python" else part for part in ours.command]
    for name, value in env.items():
        command = [part.replace(f"$({name})", value) for part in command]
    for path, there in moved.items():
        command = [part.replace(path, there) for part in command]
    probes = [(name, probe["httpGet"]["path"]) for name, probe in ours.probes.items()]
    return command, env, probes


@pytest.fixture(scope="module", params=list(EngineKind))
def pod(request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    definition = DEFINITIONS[request.param]
    folder = tmp_path_factory.mktemp("pod")
    command, env, probes = rendered(definition, model_folder, folder)
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
    try:
        yield _ready(Pod(request.param, dict(probes)), definition, process, log)
    finally:
        stop(process)


def _ready(pod: Pod, definition: EngineDefinition, process: subprocess.Popen, log: Path) -> Pod:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(definition.url(ADDRESS) + pod.probes["readinessProbe"], timeout=2):
                return pod
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture
async def running(pod: Pod) -> AsyncIterator[EngineApi]:
    async with aiohttp.ClientSession() as session:
        yield engine_apis(session)[pod.kind]


async def test_the_rendered_pod_serves_and_its_probes_answer(pod: Pod, running: EngineApi) -> None:
    url = DEFINITIONS[pod.kind].url(ADDRESS)
    async with aiohttp.ClientSession() as session:
        for path in pod.probes.values():
            async with session.get(url + path) as answer:
                assert answer.status == 200, path
    await running.one_token(url, model="chat")


async def test_another_model_is_no_proof(pod: Pod, running: EngineApi) -> None:
    with pytest.raises(EngineCallError, match="404"):
        await running.one_token(DEFINITIONS[pod.kind].url(ADDRESS), model="another")


async def test_what_it_started_with_is_what_was_wanted(running: EngineApi) -> None:
    if running.live is None:
        pytest.skip("cannot be asked")
    state = await running.live.read(ADDRESS, token=TOKEN)
    assert change_to(state, WANTED) is None
    assert boot_difference(state, WANTED) == ""
    assert (state.revision, state.device, state.pretend_gpu) == ("as-started", "cpu", False)
    assert state.ceilings == WANTED.ceilings


async def test_a_change_is_in_force_at_once_or_not_at_all(running: EngineApi) -> None:
    if running.live is None:
        pytest.skip("cannot be reconfigured")
    before = await running.live.read(ADDRESS, token=TOKEN)
    wanted = replace(WANTED, values={**WANTED.values, "decode_ratio": 0.5}, slo=None, revision="second")
    change = change_to(before, wanted)
    assert change == ConfigChange(
        knobs={"decode_ratio": 0.5}, slo=SloChange(None), revision="second", if_generation=before.generation
    )
    after = await running.live.change(ADDRESS, change, token=TOKEN)
    assert (after.generation, after.revision, after.slo) == (before.generation + 1, "second", None)
    assert change_to(after, wanted) is None
    with pytest.raises(StaleGeneration):
        await running.live.change(ADDRESS, change, token=TOKEN)
    refused = replace(change, knobs={"decode_ratio": 0.1, "max_num_seqs": 9}, if_generation=after.generation)
    with pytest.raises(EngineRefused) as error:
        await running.live.change(ADDRESS, refused, token=TOKEN)
    assert [problem.knob for problem in error.value.problems] == ["max_num_seqs"]
    back = change_to(await running.live.read(ADDRESS, token=TOKEN), WANTED)
    assert back is not None
    assert change_to(await running.live.change(ADDRESS, back, token=TOKEN), WANTED) is None


async def test_another_token_is_denied(running: EngineApi) -> None:
    if running.live is None:
        pytest.skip("cannot be asked")
    with pytest.raises(EngineDenied):
        await running.live.read(ADDRESS, token="x" * 16)
