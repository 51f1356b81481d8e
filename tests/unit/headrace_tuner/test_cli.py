"""The commands as a person types them: results, and what they say when something is wrong."""

import pytest
import typer
from typer.testing import CliRunner

from headrace_client.load.client import Endpoint, LoadClient, load_session
from headrace_core.workload.plans import Workload
from headrace_tuner import cli
from headrace_tuner.cli_study import next_port, read_run, slo_of
from headrace_tuner.errors import TunerError
from headrace_tuner.measure.background_load import background_load
from headrace_tuner.settings import check_fits, check_slo, study_plan, workload_of

RUN = """
apiVersion: headrace.dev/v1alpha1
kind: TuningRun
metadata: {name: chat, namespace: demo}
spec:
  serviceRef: {name: chat}
  slo: {ttft: {percentile: 95, threshold: 2s}, itl: {threshold: 200ms}, attainment: 0.9}
  knobs: [{name: prefillChunkSize, min: 32, max: 256, log: true}]
  budget: {trials: 8}
  workload:
    rate: 1.5
    duration: 16s
    promptTokens: {short: {mean: 24}, long: {mean: 768}, longShare: 0.2}
    outputTokens: {mean: 32}
  apply: Auto
"""


def app(command) -> typer.Typer:
    single = typer.Typer()
    single.command()(command)
    return single


def invoke(command, *words: str):
    return CliRunner().invoke(app(command), list(words))


def test_tune_refuses_without_prometheus(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    result = invoke(cli.tune, "http://127.0.0.1:1", "--spec", str(tmp_path / "run.yaml"))
    assert result.exit_code == 2
    assert "--prometheus-url is missing" in result.output


def test_a_spec_becomes_a_study(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    run = read_run(tmp_path / "run.yaml")
    plan, load = study_plan(run.spec, run.spec.slo, keep_load=True), workload_of(run.spec.workload)
    assert (plan.trials, plan.blocks, plan.goal.attainment, plan.keep_load) == (8, 4, 0.9, True)
    assert plan.goal.thresholds == {"ttft": 2.0, "itl": 0.2}
    assert (load.requests, load.long_prompt_tokens, load.long_share) == (24, 768, 0.2)
    assert not study_plan(run.spec, run.spec.slo, keep_load=False).keep_load


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("kind: Pod", "holds 0 TuningRuns"),
        (RUN + "  aply: Auto\n", "spec.aply"),
        (RUN.replace("min: 32, max: 256", "min: 256, max: 32"), "min must be less than max"),
    ],
)
def test_a_bad_spec_names_file_and_field(tmp_path, text: str, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(TunerError, match=words) as caught:
        read_run(path)
    assert str(path) in str(caught.value)


def test_the_engines_own_slo_is_taken_where_the_spec_has_none() -> None:
    slo = slo_of({"ttft_seconds": 0.8, "itl_seconds": 0.05, "itl_percentile": 95, "tpot_seconds": None})
    assert slo.for_engine()["itl_percentile"] == 95
    assert slo.for_engine()["ttft_seconds"] == 0.8
    with pytest.raises(TunerError, match="there is no SLO"):
        slo_of(None)


def test_an_engine_with_another_slo_is_refused(tmp_path) -> None:
    from types import SimpleNamespace

    slo = slo_of({"ttft_seconds": 0.8})
    check_slo(SimpleNamespace(slo=slo.for_engine()), slo)
    for other in (None, slo.for_engine() | {"ttft_seconds": 0.9}):
        with pytest.raises(TunerError, match="start the engine with that one"):
            check_slo(SimpleNamespace(slo=other), slo)


def test_a_load_that_the_model_cannot_hold_is_refused() -> None:
    load = Workload(rate=1, duration=1, short_prompt_tokens=400, output_tokens=100)
    with pytest.raises(TunerError, match="625 tokens"):
        check_fits(load, Endpoint(url="", model="m", max_model_len=512))
    check_fits(load, Endpoint(url="", model="m"))


def test_the_admin_port_is_the_next_one() -> None:
    assert next_port("http://127.0.0.1:8000") == "http://127.0.0.1:8001"
    assert next_port("http://[::1]:8000/") == "http://[::1]:8001"
    with pytest.raises(TunerError, match="is not an address"):
        next_port("localhost")


async def test_the_load_is_kept_until_it_is_no_longer_needed(server) -> None:
    asked = 0

    async def done() -> bool:
        nonlocal asked
        asked += 1
        return len(server.bodies) >= 6

    load = Workload(rate=200, duration=0.01, short_prompt_tokens=4, output_tokens=1)
    async with load_session() as session:
        client = LoadClient(endpoint=Endpoint(url=server.url, model="fake"), session=session, salt="s")
        assert await background_load(client, load, seed=1, done=done, poll=0.01)
        assert asked > 1

        async def never() -> bool:
            return False

        assert not await background_load(client, load, seed=1, done=never, deadline=0.05, poll=0.01)
