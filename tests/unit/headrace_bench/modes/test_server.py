"""The engine's process: ends with the context, and a start that fails says why."""

import asyncio
import os
import sys

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.modes import server
from headrace_bench.modes.server import EngineProcess, running_engine, wait_idle
from headrace_client.load.client import load_session


async def test_a_start_that_fails_shows_the_end_of_its_log(tmp_path) -> None:
    async with load_session() as session:
        with pytest.raises(BenchError, match="the engine ended with code 2") as caught:
            async with running_engine("/nowhere", ["--no-such-flag"], session=session, log=tmp_path / "logs" / "x.log"):
                pass
    assert "no-such-flag" in str(caught.value)
    assert "x.log" in str(caught.value)


async def test_a_process_that_ignores_being_asked_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.2)
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    await process.stdout.readline()
    await server._stop(process)
    assert process.returncode == -9
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_waiting_for_idleness_reads_the_gauges(server, tmp_path) -> None:
    del server
    answers = iter(["running 2\n", "running 1\n", "running 0\n"])

    class Fake(EngineProcess):
        async def metrics(self) -> str:
            return next(answers)

    engine = Fake("http://nowhere", None, tmp_path / "log")
    assert await wait_idle(engine, names=["running"], seconds=5.0)
    answers = iter(["running 2\n"] * 100)
    assert not await wait_idle(engine, names=["running"], seconds=0.3)
    with pytest.raises(BenchError, match="has no series waiting"):
        await engine.total("waiting")


async def test_metrics_without_a_server_are_an_error(tmp_path) -> None:
    async with load_session() as session:
        with pytest.raises(BenchError, match=r"GET http://127\.0\.0\.1:1/metrics"):
            await EngineProcess("http://127.0.0.1:1", session, tmp_path / "log").metrics()
