"""Runs an engine as a subprocess on free loopback ports, and keeps its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp

from headrace_bench.errors import BenchError
from headrace_client import prom_text

START_SECONDS = 180.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.2
LISTENING = '"message": "listening"'  # in the engine's log, with the port
TAIL = 2000  # characters of a log that an error shows


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine."""

    url: str
    session: aiohttp.ClientSession
    log: Path

    async def metrics(self) -> str:
        """The text of its /metrics. Raises `BenchError`."""
        try:
            async with self.session.get(f"{self.url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as response:
                if response.status != HTTPStatus.OK:
                    raise BenchError(f"GET {self.url}/metrics: HTTP {response.status}")
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BenchError(f"GET {self.url}/metrics: {error or type(error).__name__}; see {self.log}") from error

    async def total(self, name: str) -> float:
        """Sum of a series over all labels. Raises `BenchError` if it is absent."""
        found = prom_text.total(await self.metrics(), name)
        if found is None:
            raise BenchError(f"GET {self.url}/metrics: has no series {name}")
        return found


@asynccontextmanager
async def running_engine(
    model: str, flags: Sequence[str], *, session: aiohttp.ClientSession, log: Path, name: str = "bench"
) -> AsyncIterator[EngineProcess]:
    """`headrace serve MODEL FLAGS` until the context ends. Raises `BenchError` with the end of its log."""
    command = [
        sys.executable, "-m", "headrace_engine", "serve", model, "--host", "127.0.0.1", "--port", "0",
        "--served-model-name", name, "--log-format", "json", "--drain-timeout", "1", *flags,
    ]  # fmt: skip
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        # A session of its own: Ctrl-C on the terminal reaches only us, and we end the engine in order.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            started = _Start(process, command, log, asyncio.get_running_loop().time() + START_SECONDS)
            engine = EngineProcess(f"http://127.0.0.1:{await _port(started)}", session, log)
            await _until_ready(engine, started)
            yield engine
        finally:
            await asyncio.shield(_stop(process))


async def wait_idle(engine: EngineProcess, *, names: Sequence[str], seconds: float) -> bool:
    """Wait until the sum of some gauges is 0. Returns whether that happened in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if not sum([await engine.total(name) for name in names]):
            return True
        await asyncio.sleep(POLL_SECONDS)
    return False


@dataclass(frozen=True, slots=True)
class _Start:
    """A started process, and its deadline to be ready, on the loop's clock."""

    process: asyncio.subprocess.Process
    command: Sequence[str]
    log: Path
    deadline: float

    def check(self) -> None:
        """Raise `BenchError` if it has ended, or is late."""
        if self.process.returncode is not None:
            raise BenchError(f"the engine ended with code {self.process.returncode}. {self._about()}")
        if asyncio.get_running_loop().time() > self.deadline:
            raise BenchError(f"the engine was not ready after {START_SECONDS:g} s. {self._about()}")

    def _about(self) -> str:
        tail = self.log.read_text(errors="replace")[-TAIL:].strip()
        return f"The command was: {' '.join(self.command)}\nIts log ({self.log}) ends with:\n{tail}"


async def _port(start: _Start) -> int:
    """The port that the engine chose. One chosen here could be taken by the time the engine binds it."""
    while True:
        with start.log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if LISTENING in line and line.endswith("\n"):
                    return int(json.loads(line)["port"])
        start.check()
        await asyncio.sleep(POLL_SECONDS)


async def _until_ready(engine: EngineProcess, start: _Start) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            limit = aiohttp.ClientTimeout(total=5)
            async with engine.session.get(f"{engine.url}/health/ready", timeout=limit) as response:
                if response.status == HTTPStatus.OK:
                    return
        start.check()
        await asyncio.sleep(POLL_SECONDS)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
