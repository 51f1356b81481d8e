"""The server as a process: the reference command line, errors at start, and the drain."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port

REFERENCE = (
    "--gpu-memory-utilization", "0.92", "--max-num-batched-tokens", "32768", "--max-num-seqs", "256",
    "--enable-chunked-prefill", "--prefill-chunk-size", "4096", "--scheduler-max-num-seqs", "256",
)  # fmt: skip


pytestmark = [pytest.mark.auto_dtype, pytest.mark.timeout(600)]  # each test imports torch in processes of its own

# Faults that no request can cause.
LOAD_HANGS = """
import threading
from headrace_engine import server
server.load_engine = lambda settings: threading.Event().wait()
"""
STEP_HANGS = """
import threading
from headrace_engine.loop.runner import ModelRunner
real = ModelRunner.run
def run(self, plan, *rest):
    if sum(not seq.is_prefill for seq in plan.seqs) == 5:  # each of the five streams has begun
        threading.Event().wait()
    return real(self, plan, *rest)
ModelRunner.run = run
"""
MAIN = "from headrace_engine.__main__ import app\napp()\n"


@contextmanager
def server(
    model: Path, *flags: str, env: dict[str, str] | None = None, fault: str = "", loads: bool = True
) -> Iterator[tuple[Any, httpx.Client]]:
    command = [sys.executable, "-c", fault + MAIN, "serve", str(model), "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (env or {}))
    try:
        port = listening(process)["port"]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            _wait(process, client, "/health/ready" if loads else "/health/live")
            yield process, client
    finally:
        process.kill()
        process.communicate()


def listening(process: Any) -> dict[str, Any]:
    """The log line that has the ports."""
    said = []
    for line in process.stderr:
        said.append(line)
        if '"listening"' in line:
            return dict(json.loads(line))
    raise AssertionError("".join(said))


def _wait(process: Any, client: httpx.Client, path: str) -> None:
    while process.poll() is None:
        try:
            if client.get(path).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.1)
    pytest.fail(process.stderr.read())


class Stream:
    """A streaming call, read in a thread; `lines` grows."""

    def __init__(self, client: httpx.Client, **body: Any) -> None:
        self.lines: list[str] = []
        self.begun = threading.Event()
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True} | body
        self._thread = threading.Thread(target=self._read, args=(client, body), daemon=True)
        self._thread.start()

    def _read(self, client: httpx.Client, body: dict[str, Any]) -> None:
        with client.stream("POST", "/v1/completions", json=body) as stream:
            for line in stream.iter_lines():
                if line:
                    self.lines.append(line)
                    self.begun.set()

    def end(self) -> list[str]:
        """All lines of the stream, which must end as HTTP requires."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        return self.lines


def five_streams(client: httpx.Client, **body: Any) -> list[Stream]:
    streams = [Stream(client, **body) for _ in range(5)]
    assert all(stream.begun.wait(60) for stream in streams)
    return streams


def is_cut(lines: list[str]) -> bool:
    """Whether a stream ended with an error event that says why, and [DONE]."""
    *_, error, done = lines
    return done == "data: [DONE]" and "shutting down" in json.loads(error.removeprefix("data: "))["error"]["message"]


def test_a_collection_does_not_walk_what_was_there_before_the_first_request(model_folder: Path) -> None:
    tell = (
        "import gc, sys\nthaw = gc.unfreeze\n"
        "gc.unfreeze = lambda: (print('left', len(gc.get_objects()), file=sys.stderr), thaw())\n"
    )
    with server(model_folder, fault=tell) as (process, client):
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        left = next(line for line in process.stderr if line.startswith("left"))
    assert int(left.split()[1]) < 100_000, "torch and transformers alone have more"


def test_sigterm_lets_five_streams_finish_and_refuses_new_calls(model_folder: Path) -> None:
    with server(model_folder, *REFERENCE, "--log-format", "json") as (process, client):
        streams = five_streams(client)
        process.send_signal(signal.SIGTERM)
        while client.get("/health/ready").status_code == 200:
            time.sleep(0.01)
        assert client.get("/health/live").status_code == 200, "health stays answerable"
        assert client.get("/metrics").status_code == 200
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
        assert refused.headers["connection"] == "close", "so that the next call goes elsewhere"
        for stream in streams:
            *_, last, done = stream.end()
            assert done == "data: [DONE]"
            assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(30) == 0
        log = [json.loads(line) for line in process.stderr.read().splitlines()]
    calls = [line for line in log if line["logger"] == "headrace_engine.access"]
    assert [line["status"] for line in calls] == [503] + [200] * 5
    assert {line["output_tokens"] for line in calls[1:]} == {1500}
    assert [line["message"] for line in log if line["logger"] == "headrace_engine.server"][-1] == "drained"
    assert [line for line in log if line["level"] not in ("info", "debug")] == []


def test_streams_cut_by_the_deadline_end_with_an_error_event(model_folder: Path) -> None:
    with server(model_folder, "--drain-timeout", "0.2") as (process, client):
        streams = five_streams(client, prompt=["x"] * 8, max_tokens=2000)
        whole = threading.Thread(target=client.post, args=("/v1/completions",), kwargs={"json": {"prompt": "x"}})
        whole.start()
        process.send_signal(signal.SIGTERM)
        assert all(is_cut(stream.end()) for stream in streams)
        assert process.wait(30) == 0
        whole.join(30)


def test_a_second_sigterm_ends_at_once_even_with_a_step_that_hangs(model_folder: Path) -> None:
    with server(model_folder, "--drain-timeout", "3600", fault=STEP_HANGS) as (process, client):
        streams = five_streams(client)
        process.send_signal(signal.SIGTERM)
        while client.get("/health/ready").status_code == 200:
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert all(is_cut(stream.end()) for stream in streams)
        assert process.wait(30) == 0


def test_sigterm_ends_a_server_that_still_loads(model_folder: Path) -> None:
    with server(model_folder, fault=LOAD_HANGS, loads=False) as (process, client):
        assert client.get("/health/startup").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_engine_json_and_flags(model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "prefill_chunk_size": 16}
    ceilings = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    file.write_text(json.dumps({"revision": "r7", "config": config, "ceilings": ceilings, "slo": None}))
    flags = ("--config", str(file), "--max-chunk-size", "32", "--no-preemptible", "--served-model-name", "m")
    admin = free_port()
    flags += ("--admin-port", str(admin))
    with server(model_folder, *flags, env={"HEADRACE_PRETEND_GPU": "true"}) as (_, client):
        body = httpx.get(f"http://127.0.0.1:{admin}/admin/config").json()
        assert (body["revision"], body["pretend_gpu"]) == ("r7", True)
        effective = {name: body["config"][name] for name in (*config, "preemptible")}
        assert effective == config | {"prefill_chunk_size": 32, "preemptible": False}
        assert [knob["ceiling"] for knob in body["knobs"] if knob["ceiling"]] == [256, 2048]
        assert client.get("/v1/models").json()["data"][0]["id"] == "m"


def failing(*arguments: str) -> str:
    """Standard error of a server that must exit with 2."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace_engine", "serve", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_wrong_key_file_is_one_line(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nobody yet\n")
    said = failing(str(model_folder), "--api-key-file", str(tmp_path / "keys"))
    assert f"--api-key-file {tmp_path}/keys: holds no key" in said


def test_keys_and_prompts_in_the_log_of_a_process(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("team-a:sk-1\n")
    env = {"HEADRACE_API_KEYS_FILE": str(tmp_path / "keys")}
    with server(model_folder, "--log-prompts", "--log-format", "json", env=env) as (process, client):
        assert client.get("/v1/models").status_code == 401
        body = {"prompt": "tell me", "max_tokens": 2}
        key = {"Authorization": "Bearer sk-1"}
        assert client.post("/v1/completions", json=body, headers=key).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        log = process.stderr.read()
    calls = [json.loads(line) for line in log.splitlines() if "headrace_engine.access" in line]
    assert [(line["status"], line["key"]) for line in calls] == [(401, None), (200, "team-a")]
    assert json.loads(calls[1]["body"]) == body
    assert "sk-1" not in log


def test_a_taken_port_is_named(model_folder: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        said = failing(str(model_folder), "--port", str(port))
    assert f"port {port} on 127.0.0.1 is taken" in said
    assert "--port" in said


def test_wrong_flags_and_models_are_one_line(model_folder: Path, tmp_path: Path) -> None:
    said = failing(str(model_folder), "--prefill-chunk-size", "512", "--max-num-batched-tokens", "256")
    assert "--prefill-chunk-size" in said
    assert "does not exist" in failing(str(tmp_path / "nowhere"))
    said = failing(str(model_folder), "--port", "0", "--max-model-len", "99999", "--log-format", "json")
    assert "exceeds the model's own limit 2048" in said
