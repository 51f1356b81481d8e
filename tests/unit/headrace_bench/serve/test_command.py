"""`headrace bench serve` as a person types it, against a server that behaves and one that does not."""

import asyncio
import io
import json
import os
import signal

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from headrace_bench.serve.command import bench_compare, bench_serve
from headrace_bench.serve.options import ServeOptions
from headrace_bench.serve.run import run_serve
from headrace_bench.serve.show import TerminalDisplay

SHORT = ("--rate", "40", "--duration", "500ms", "--prompt-tokens", "8", "--output-tokens", "4")


def app(command) -> typer.Typer:
    single = typer.Typer()
    single.command()(command)
    return single


def invoke(command, *words: str, env: dict | None = None):
    return CliRunner(env=env).invoke(app(command), list(words))


async def bench(server, *words: str, env: dict | None = None):
    # The command has an event loop of its own, so it runs beside this one's.
    return await asyncio.to_thread(invoke, bench_serve, server.url, *words, env=env)


async def result_of(server, *words: str) -> dict:
    found = await bench(server, *words, "--json", "-")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


async def test_it_writes_what_it_saw(server, tmp_path) -> None:
    out, lines = tmp_path / "result.json", tmp_path / "records.jsonl"
    files = ("--json", str(out), "--records", str(lines))
    result = await bench(server, *SHORT, "--seed", "5", "--warmup", "0.1", "--slo-ttft", "5s", *files)
    assert result.exit_code == 0, result.output
    assert "TTFT" in result.output
    assert "no errors" in result.output
    body = json.loads(out.read_text())
    assert body["requests"] == body["completed"] == 20
    assert body["warmup_requests"] == 4
    assert len(server.bodies) == 25, "one to agree on the API; the warm-up is sent and not counted"
    assert set(body["latency_seconds"]) == {"ttft", "itl", "worst_gap", "tpot", "e2e"}
    assert body["errors"] == {}
    assert body["seed"] == 5
    assert body["goodput"]["good"] == 20
    assert body["environment"]["cores"] >= 1
    assert {"requests_per_second", "output_tokens_per_second", "seconds"} <= set(body), "other tools read these"
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(records) == 24
    assert [item["number"] for item in records] == list(range(24))


async def test_json_on_stdout_is_all_that_is_there(server) -> None:
    body = await result_of(server, "--rate", "20", "--duration", "0.2", "--output-tokens", "2")
    assert body["completed"] == 4
    assert body["mode"] == "open loop, poisson 20/s"


async def test_a_closed_loop_says_so(server) -> None:
    body = await result_of(server, "--concurrency", "2", "--duration", "0.2", "--output-tokens", "2")
    assert body["mode"].startswith("closed loop, 2 at once")
    assert body["completed"] >= 2


async def test_a_closed_loop_of_a_number_of_requests_ends_with_them(server) -> None:
    body = await result_of(server, "--concurrency", "3", "--requests", "7", "--output-tokens", "2")
    assert (body["requests"], body["completed"]) == (7, 7)
    assert 0 < body["window"]["end"] < 60


async def test_all_at_once(server) -> None:
    body = await result_of(server, "--rate", "inf", "--requests", "6", "--output-tokens", "2")
    assert body["completed"] == 6
    assert body["in_window"] is None


async def test_a_trace_is_replayed_with_its_prompts(server, tmp_path) -> None:
    lines = [
        {"timestamp": 5000, "prompt": "tell me", "output_tokens": 2},
        {"timestamp": 5100, "prompt_tokens": 6, "output_tokens": 3},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    trace = ("--trace", str(tmp_path / "t.jsonl"), "--trace-unit", "ms", "--time-scale", "2")
    body = await result_of(server, *trace)
    assert body["completed"] == 2
    assert body["window"]["end"] == pytest.approx(0.2)
    assert server.bodies[1]["prompt"] == "tell me"
    assert len(server.bodies[2]["prompt"]) == 6


async def test_chat_goes_to_the_other_route(server) -> None:
    body = await result_of(server, "--api", "chat", *SHORT, "--prompt-tokens", "30")
    assert body["completed"] == 20
    assert body["lengths"]["prompt"] == pytest.approx(30, abs=1), "the frame's ten tokens are counted off"
    assert "messages" in server.bodies[-1]


async def test_the_key_comes_from_a_file_or_the_environment_and_goes_nowhere_else(server, tmp_path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    one = ("--rate", "20", "--duration", "0.05", "--output-tokens", "2", "--json", "-")
    result = await bench(server, *one, "--api-key-file", str(tmp_path / "key"))
    assert server.headers[-1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in result.output
    await bench(server, *one, env={"HEADRACE_API_KEY": "other"})
    assert server.headers[-1]["Authorization"] == "Bearer other"
    await bench(server, *one, env={"HEADRACE_API_KEY": ""})
    assert "Authorization" not in server.headers[-1]


async def test_servers_that_bundle_stop_early_or_do_not_count_are_measured_as_they_are(server) -> None:
    server.per_chunk = 2
    body = await result_of(server, *SHORT)
    assert body["lengths"]["chunks_per_token"] == 0.5
    server.usage = False
    body = await result_of(server, *SHORT)
    assert body["lengths"]["counted"] is False
    assert body["output_tokens"] == 40, "two chunks each"
    server.usage, server.per_chunk = True, 1

    async def handler(request, body, number):
        return await server.well(request, body | {"max_tokens": 3}, number)

    server.handler = handler
    body = await result_of(server, *SHORT)
    assert body["lengths"]["short_answers"] == 20
    assert body["errors"] == {}


async def test_a_refused_field_is_noted(server) -> None:
    server.refuses = ("ignore_eos",)
    result = await bench(server, *SHORT)
    assert result.exit_code == 0
    assert "the server refuses ignore_eos" in " ".join(result.output.split())


async def test_without_a_server_it_is_one_line(server) -> None:
    server.url = "http://127.0.0.1:1"
    result = await bench(server)
    assert result.exit_code == 2
    assert "no OpenAI server answers there" in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


async def test_a_server_that_wants_a_key_is_named(server) -> None:
    server.models, server.models_status = {"error": "denied"}, 401
    result = await bench(server)
    assert result.exit_code == 2
    assert "wants an API key" in " ".join(result.output.split())


async def test_a_proxy_without_a_list_of_models_is_believed(server) -> None:
    server.models_status = 404
    assert (await bench(server, *SHORT, "--model", "mine")).exit_code == 0
    assert server.bodies[-1]["model"] == "mine"


async def test_it_exits_1_where_nothing_was_answered(server) -> None:
    async def broken(request, body, number):
        if number == 0:
            return await server.well(request, body, number)
        raise RuntimeError

    server.handler = broken
    result = await bench(server, "--rate", "20", "--duration", "0.1", "--output-tokens", "2")
    assert result.exit_code == 1
    assert "2 http_500" in result.output


async def test_strict_exits_3_where_the_client_was_the_limit(server) -> None:
    async def hang(request, body, number):
        if number == 0:
            return await server.well(request, body, number)
        await asyncio.sleep(0.3)
        return await server.well(request, body, number)

    server.handler = hang
    words = (*SHORT, "--max-in-flight", "1")
    result = await bench(server, *words, "--strict")
    assert result.exit_code == 3, result.output
    assert "the client was the limit" in " ".join(result.output.split())
    assert (await bench(server, *words)).exit_code == 0


async def test_an_interrupted_run_keeps_what_it_has(server) -> None:
    server.token_seconds = 0.01
    options = ServeOptions(rate=50, duration=60.0, output_tokens="2")
    terminal = asyncio.create_task(run_serve(server.url, options, TerminalDisplay(Console(file=io.StringIO()))))
    while len(server.bodies) < 20:
        await asyncio.sleep(0.01)
    terminal.cancel()
    ran = await terminal
    assert ran.interrupted
    assert 0 < ran.result.completed < 3000, "all that were planned"
    assert ran.window.end < 30
    json.dumps(ran.to_json(), allow_nan=False)


def test_sigterm_ends_the_command_in_order() -> None:
    from headrace_client import terminal

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)

    with pytest.raises(typer.Exit) as caught:
        terminal.run_async(work())
    assert caught.value.exit_code == 130


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--rate", "0"), "--rate"),
        (("--rate", "nan"), "--rate"),
        (("--rate", "inf"), "--requests"),
        (("--long-share", "2"), "--long-share"),
        (("--output-tokens", "0"), "--output-tokens"),
        (("--prompt-tokens", "many"), "--prompt-tokens"),
        (("--duration", "0"), "--duration"),
        (("--duration", "soon"), "--duration"),
        (("--warmup", "-1"), "--warmup"),
        (("--ramp-to", "-1"), "--ramp-to"),
        (("--burstiness", "0"), "--burstiness"),
        (("--prefix-share", "2"), "--prefix-share"),
        (("--slo-ttft", "0"), "--slo-ttft"),
        (("--slo-itl-percentile", "101"), "--slo-itl-percentile"),
        (("--extra-body", "["), "--extra-body"),
        (("--extra-body", "[]"), "--extra-body"),
        (("--trace", "/nowhere"), "--trace"),
        (("--trace", "/nowhere", "--concurrency", "2"), "--concurrency"),
        (("--api-key-file", "/nowhere"), "--api-key-file"),
        (("--json", "/nowhere/x.json"), "--json"),
        (("--records", "/nowhere/x.jsonl"), "--records"),
        (("--temperature", "9"), "--temperature"),
    ],
)
def test_a_bad_flag_is_named_before_anything_is_sent(words: tuple[str, ...], flag: str) -> None:
    result = invoke(bench_serve, "http://127.0.0.1:1", *words)
    assert result.exit_code == 2
    assert flag in result.output
    assert "Traceback" not in result.output


async def test_a_load_that_the_model_cannot_hold_is_refused(server) -> None:
    result = await bench(server, "--prompt-tokens", "500", "--output-tokens", "20")
    assert result.exit_code == 2
    assert "up to 520 tokens; fake takes 512" in " ".join(result.output.split())


async def test_compare_reads_what_serve_writes(server, tmp_path) -> None:
    names = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for name in names:
        await bench(server, *SHORT, "--json", name)
    result = invoke(bench_compare, *names, "--json", str(tmp_path / "c.json"))
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "c.json").read_text())["paired"] is True
    assert invoke(bench_compare, names[0], str(tmp_path / "c.json")).exit_code == 2
