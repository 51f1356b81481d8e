"""The tuner against the real engine and a real Prometheus: what one says, the other understands. No speeds."""

import asyncio
import json
import re
import urllib.request
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

from headrace_api.v1alpha1.record_codec import decode
from headrace_api.v1alpha1.records import StudyVerdict, TrialState
from headrace_bench.errors import BenchError
from headrace_bench.modes.server import running_engine
from headrace_bench.serve.options import PromptForm, ServeOptions
from headrace_bench.serve.run import run_serve
from headrace_bench.serve.show import TerminalDisplay
from headrace_client.engine import EngineAdmin
from headrace_client.load.client import LoadClient, find_endpoint, load_session
from headrace_core.workload.plans import Workload, plan_load, plan_window
from headrace_tuner.cli_study import CliStudy, slo_of
from headrace_tuner.connections import Addresses, connect
from headrace_tuner.errors import TrialVoid, TunerError

pytestmark = pytest.mark.auto_dtype
LOAD = Workload(
    rate=8, duration=3, short_prompt_tokens=12, long_prompt_tokens=120, long_share=0.25, output_tokens=8
)  # fmt: skip
AS_FOUND = {"prefill_chunk_size": 256, "max_num_batched_tokens": 256}
SPEC = {
    "apiVersion": "headrace.dev/v1alpha1",
    "kind": "TuningRun",
    "metadata": {"name": "tiny", "namespace": "default"},
    "spec": {
        "serviceRef": {"name": "tiny"},
        "knobs": [
            {"name": "prefillChunkSize", "choices": [16, 64, 256]},
            {"name": "maxNumBatchedTokens", "choices": [64, 256]},
        ],
        "slo": {"ttft": {"threshold": "5s"}, "itl": {"threshold": "2s"}, "attainment": 0.5},
        "sampler": {"seed": 5},
        "budget": {"trials": 4},
        "workload": {
            "rate": 8.0, "duration": "3s", "warmup": "1s", "promptTokens": {"short": {"mean": 12}},
            "outputTokens": {"mean": 8},
        },
        "verification": {"blocks": 2},
    },
}  # fmt: skip


async def test_bench_serve_gets_exact_lengths_from_the_engine(engine) -> None:
    options = ServeOptions(rate=8, duration=3.0, prompt_tokens="uniform:8:24", output_tokens="uniform:4:12", seed=3)
    ran = await run_serve(engine.url, options, TerminalDisplay(Console(quiet=True)))
    assert ran.result.errors == {}, ran.result.first_error
    assert ran.result.completed == 24
    assert ran.probed.notes == ()
    assert all(record.counted and record.output_tokens == record.wanted_tokens for record in ran.records)
    planned = plan_window(ran.asked.arrivals, ran.asked.shape, requests=24, duration=3.0, seed=3)
    assert [item.prompt_tokens for item in ran.records] == [item.prompt_tokens for item in planned]


async def test_bench_serve_makes_text_of_about_the_length_where_it_cannot_send_ids(engine) -> None:
    options = ServeOptions(
        rate=8, duration=1.0, prompt_tokens="200", output_tokens="4", prompt_form=PromptForm.TEXT, concurrency=2,
        requests=8,
    )  # fmt: skip
    ran = await run_serve(engine.url, options, TerminalDisplay(Console(quiet=True)))
    assert ran.result.completed == 8
    assert ran.result.lengths.prompt == pytest.approx(200, rel=0.1), "one token a byte, measured before"


async def test_a_client_that_leaves_frees_its_requests(engine) -> None:
    async with load_session() as session:
        client = LoadClient(endpoint=await find_endpoint(session, engine.url), session=session, salt="leaving")
        plan = plan_load(replace(LOAD, rate=40, duration=0.5, output_tokens=300), 1)
        load = asyncio.create_task(client.open_loop(plan, drain=60))
        while client.progress.first_tokens < 2:
            await asyncio.sleep(0.02)
        load.cancel()
        await asyncio.wait([load])
    async with asyncio.timeout(30):
        while any(await asyncio.to_thread(gauges, engine)):
            await asyncio.sleep(0.1)


def gauges(engine) -> list[float]:
    with urllib.request.urlopen(engine.url + "/metrics") as response:
        lines = response.read().decode().splitlines()
    names = ("headrace:running", "headrace:waiting")
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names)]


def addresses_of(engine, prometheus_url: str) -> Addresses:
    return Addresses(trial_url=engine.url, admin_url=engine.admin_url, prometheus_url=prometheus_url)


async def test_one_window_counts_its_own_requests_and_no_others(engine, prometheus_url) -> None:
    async with connect(addresses_of(engine, prometheus_url)) as connections:
        spec = run_of(SPEC).spec
        meter = connections.meter(spec, spec.slo)
        first = await meter.measure({"prefill_chunk_size": 64}, seed=1, label="one")
        second = await meter.measure({"prefill_chunk_size": 16}, seed=1, label="two")
    for measured in (first, second):
        reading = measured.reading
        assert reading.counts.requests == 24, "the warm-up's 8 requests are not the window's"
        assert 0 <= reading.counts.good <= 24
        assert sum(half.requests for half in reading.halves) == 24
        assert all(half.requests >= 0 and half.output_tokens >= 0 for half in reading.halves)
        assert reading.throughput > 0
        assert set(reading.p95) == {"ttft", "itl", "e2e"}
        assert reading.measures().e2e_p95 is not None


async def test_requests_of_somebody_else_void_the_window(engine, prometheus_url) -> None:
    async with connect(addresses_of(engine, prometheus_url)) as connections:
        spec = run_of(SPEC).spec
        meter = connections.meter(spec, spec.slo)
        window = asyncio.create_task(meter.measure({"prefill_chunk_size": 64}, seed=2, label="shared"))
        while not (await connections.target.state()).revision.startswith("shared-") or (
            await connections.target.state()
        ).revision.endswith("-warmup"):
            await asyncio.sleep(0.05)
        stranger = LoadClient(endpoint=connections.endpoint, session=connections.session, salt="stranger")
        while not window.done():  # on a busy machine a single burst may end after the window
            await stranger.open_loop(plan_load(replace(LOAD, duration=0.5), 9), drain=30)
        with pytest.raises(TrialVoid, match="is anything else sending requests"):
            await window


def measuring(revision: str) -> bool:
    return revision.startswith("changed-") and not revision.endswith("-warmup")


async def test_a_config_changed_by_somebody_else_voids_the_window(engine, prometheus_url) -> None:
    async with connect(addresses_of(engine, prometheus_url)) as connections, EngineAdmin(engine.admin_url) as admin:
        spec = run_of(SPEC).spec
        meter = connections.meter(spec, spec.slo)
        window = asyncio.create_task(meter.measure({"prefill_chunk_size": 64}, seed=2, label="changed"))
        while not measuring((await admin.get_config()).revision):
            await asyncio.sleep(0.05)
        await admin.patch_config({}, revision="by-somebody")
        with pytest.raises(TrialVoid, match="something else changed the engine's config"):
            await window


def run_of(body: dict):
    from headrace_api.v1alpha1.tuningrun import TuningRun

    return TuningRun.parse(body)


async def test_a_whole_study_from_the_command_line(engine, prometheus_url, tmp_path) -> None:
    spec = tmp_path / "run.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    records = tmp_path / "records"
    cli_study = CliStudy(
        url=engine.url, admin_url=engine.admin_url, prometheus_url=prometheus_url, spec=spec, records=records
    )
    async with EngineAdmin(engine.admin_url) as admin:
        before = await admin.patch_config(AS_FOUND, revision="as-found")
        study = await cli_study.run(Console(quiet=True))
        after = await admin.get_config()
        assert after.config == before.config
        assert after.revision == before.revision
    written = decode({path.name: path.read_text() for path in records.glob("*.json")})
    assert len(written.trials) == 4
    assert written.trials[0].knobs.values() == AS_FOUND
    assert all(trial.state is not TrialState.VOID for trial in written.trials), written.trials
    assert study.verdict in set(StudyVerdict) - {StudyVerdict.ABSTAINED}
    assert study == await cli_study.run(Console(quiet=True)), (
        "a second start finds the study ended and measures nothing"
    )


async def test_an_engine_with_another_slo_is_refused_before_any_trial(engine, prometheus_url, tmp_path) -> None:
    spec = tmp_path / "run.yaml"
    other = json.loads(json.dumps(SPEC))
    other["spec"]["slo"]["ttft"]["threshold"] = "1s"
    spec.write_text(yaml.safe_dump(other))
    cli_study = CliStudy(
        url=engine.url, admin_url=engine.admin_url, prometheus_url=prometheus_url, spec=spec, records=tmp_path / "none"
    )
    with pytest.raises(TunerError, match="start the engine with that one"):
        await cli_study.run(Console(quiet=True))
    async with EngineAdmin(engine.admin_url) as admin:
        assert slo_of((await admin.get_config()).slo).ttft.seconds == 5


async def test_an_engine_of_our_own_tells_its_port_and_ends_with_the_context(model_folder, tmp_path) -> None:
    async with load_session() as session:
        flags = ("--threads", "1", "--kv-cache-bytes", str(1 << 22))
        async with running_engine(str(model_folder), flags, session=session, log=tmp_path / "log") as own:
            assert not own.url.endswith(":0")
            assert await own.total("headrace:running") == 0
        with pytest.raises(BenchError, match=re.escape(own.url)):
            await own.metrics()
