"""The server as a process: the reference command line, errors at start, and the drain."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

REFERENCE = (
    "--gpu-memory-utilization", "0.92", "--max-num-batched-tokens", "32768", "--max-num-seqs", "256",
    "--enable-chunked-prefill", "--prefill-chunk-size", "4096", "--scheduler-max-num-seqs", "256",
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def server(model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[tuple[Any, httpx.Client]]:
    port = free_port()
    command = [
        sys.executable, "-m", "headrace_engine", "serve", str(model), "--port", str(port), "--admin-port",
        str(free_port()), *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (env or {}))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            _wait_ready(process, client)
            yield process, client
    finally:
        process.kill()
        process.communicate()


def _wait_ready(process: Any, client: httpx.Client) -> None:
    while process.poll() is None:
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.ConnectError:
            pass
        time.sleep(0.1)
    pytest.fail(process.stderr.read())


def test_sigterm_lets_streams_finish_and_refuses_new_calls(model_folder: Path) -> None:
    with server(model_folder, *REFERENCE) as (process, client):
        body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            while client.get("/health/ready").status_code == 200:
                time.sleep(0.01)
            refused = client.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(30) == 0


def test_the_drain_ends_at_its_deadline(model_folder: Path) -> None:
    with server(model_folder, "--drain-timeout", "0.2") as (process, client):
        body = {"prompt": ["x"] * 16, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_engine_json_and_flags(model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "prefill_chunk_size": 16}
    ceilings = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    file.write_text(json.dumps({"revision": "r7", "config": config, "ceilings": ceilings, "slo": None}))
    flags = ("--config", str(file), "--max-chunk-size", "32", "--no-preemptible", "--served-model-name", "m")
    with server(model_folder, *flags, env={"HEADRACE_PRETEND_GPU": "true"}) as (process, client):
        admin = next(int(process.args[at + 1]) for at, arg in enumerate(process.args) if arg == "--admin-port")
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
    said = failing(str(model_folder), "--port", str(free_port()), "--max-model-len", "99999", "--log-format", "json")
    assert "exceeds the model's own limit 2048" in said
