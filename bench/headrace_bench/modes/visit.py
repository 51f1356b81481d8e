"""One visit to one mode: a fresh engine is warmed up and loaded at each level, and its busy share is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_bench.errors import BenchError
from headrace_bench.modes.design import Design, Level, LoadRates, Mode, Windows
from headrace_bench.modes.outcome import LevelRun
from headrace_bench.modes.server import EngineProcess, wait_idle
from headrace_bench.serve.probe import probe
from headrace_bench.serve.prompts import Composer, Dialect, Prepared
from headrace_bench.serve.result import ServeWindow
from headrace_bench.serve.watch import watching
from headrace_bench.server_facts import differing, server_facts
from headrace_client.load.client import Endpoint, LoadClient, RequestRecord, find_endpoint
from headrace_core import metric_names as metrics
from headrace_core.workload.arrivals import Arrivals
from headrace_core.workload.plans import PlannedRequest, RequestKind, derive_seed, endless, with_warmup

IDLE_SECONDS = 30.0
REQUEST_SECONDS = 600.0
WARM_OUTPUT = 8
WARM_SHARE = 0.25  # of a full load's time, before it counts
GAUGES = (metrics.RUNNING.series, metrics.WAITING.series)
Watching = Callable[[str, LoadClient], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The mode visited, and the callback that is told of each load that begins."""

    mode: Mode
    repetition: int
    seed: int
    show: Watching


@dataclass(frozen=True, slots=True)
class Ready:
    """A warm engine with its client and dialect."""

    engine: EngineProcess
    endpoint: Endpoint
    dialect: Dialect
    facts: Mapping[str, Any]


async def make_ready(engine: EngineProcess, knobs: Mapping[str, Any], *, dialect: Dialect | None = None) -> Ready:
    """Read the engine's config and API. `dialect`: what is already known of its tokenizer.

    Raises `BenchError` if the config in force is not that of `knobs`.
    """
    facts = await server_facts(engine.session, engine.url)
    wrong = differing(facts.get("config", {}), knobs)
    if wrong:
        raise BenchError(f"the engine's config differs from its flags: {'; '.join(wrong)}; see {engine.log}")
    endpoint = await find_endpoint(engine.session, engine.url)
    if dialect is None:
        dialect = (await probe(engine.session, endpoint, Dialect(ids=False), text=True)).dialect
    return Ready(engine, endpoint, dialect, facts)


async def warm_up(ready: Ready, design: Design, visit: Visit) -> None:
    """One long prompt and a few short ones, so that nothing is done for the first time under load."""
    long, short = design.shape.long or design.shape.prompt, design.shape.prompt
    plan = [
        PlannedRequest(at=0.0, prompt_tokens=length.high, output_tokens=WARM_OUTPUT, kind=RequestKind.SHORT)
        for length in (long, short, short, short)
    ]
    client = _client(ready, salt=f"{visit.seed}:warm")
    visit.show("warming up", client)
    records = await client.open_loop(plan, drain=REQUEST_SECONDS)
    failed = next((record for record in records if record.error), None)
    if failed is not None:
        raise BenchError(f"the first requests failed: {failed.error}: {failed.detail}; see {ready.engine.log}")


async def open_level(
    ready: Ready, design: Design, visit: Visit, *, level: Level, rates: LoadRates, windows: Windows
) -> LevelRun:  # fmt: skip
    """An open-loop load. Each mode gets the same plan, prompt by prompt; the low one is the same in each repetition."""
    rate, seconds = (rates.low, windows.low) if level is Level.LOW else (rates.high, windows.high)
    seed = derive_seed(visit.seed, level, 0 if level is Level.LOW else visit.repetition)
    arrivals = Arrivals(rate=rate)
    plan = with_warmup(
        arrivals,
        design.shape,
        requests=arrivals.count(seconds),
        duration=seconds,
        warmup=windows.warmup,
        seed=seed,
    )
    client = _client(ready, salt=str(seed), plan=plan)
    visit.show(f"{level} load, {rate:.3g}/s", client)
    window = ServeWindow(begin=windows.warmup, end=windows.warmup + seconds)
    drain = max(0.0, window.end - plan[-1].at) + windows.drain
    return await _measured(
        ready, visit, level, lambda: client.open_loop(plan, drain=drain), window=window, rate=rate
    )  # fmt: skip


async def full_level(ready: Ready, design: Design, visit: Visit, *, seconds: float) -> LevelRun:
    """A closed loop of twice as many requests as the batch holds: each one that ends is replaced at once."""
    seed = derive_seed(visit.seed, Level.FULL, visit.repetition)
    client = _client(ready, salt=str(seed))
    visit.show(f"full load, {2 * design.max_num_seqs} at once", client)
    begin = 0.0 if visit.mode is Mode.STATIC else WARM_SHARE * seconds
    window, source, concurrency = (
        ServeWindow(begin=begin, end=seconds),
        endless(design.shape, seed),
        2 * design.max_num_seqs,
    )

    def send() -> Awaitable[list[RequestRecord]]:
        return client.closed_loop(source, concurrency=concurrency, duration=seconds, drain=0.0)

    return await _measured(ready, visit, Level.FULL, send, window=window, rate=None)


async def _measured(
    ready: Ready, visit: Visit, level: Level, send: Callable[[], Awaitable[list[RequestRecord]]], *,
    window: ServeWindow, rate: float | None,
) -> LevelRun:  # fmt: skip
    if not await wait_idle(ready.engine, names=GAUGES, seconds=IDLE_SECONDS):
        raise BenchError(f"the engine is still working on the last load; see {ready.engine.log}")
    loop = asyncio.get_running_loop()
    async with watching() as watch:
        start = loop.time()
        load = asyncio.ensure_future(send())
        try:
            busy = await _busy(ready.engine, start, window)
            records = await load
        finally:
            load.cancel()
            await asyncio.wait([load])
        ended, health = loop.time() - start, watch.health()
    return LevelRun(
        mode=visit.mode,
        level=level,
        repetition=visit.repetition,
        rate=rate,
        records=records,
        window=window,
        ended=ended,
        busy=busy,
        health=health,
    )


async def _busy(engine: EngineProcess, start: float, window: ServeWindow) -> float:
    """Share of the window that the engine spent in steps: its own counter over the clock between two readings."""
    readings = []
    loop = asyncio.get_running_loop()
    for at in (window.begin, window.end):
        await asyncio.sleep(max(0.0, start + at - loop.time()))
        readings.append((loop.time(), await engine.total(metrics.BUSY_SECONDS.series)))
    (then, before), (now, after) = readings
    return min(1.0, max(0.0, (after - before) / (now - then)))


def _client(ready: Ready, *, salt: str, plan: Sequence[PlannedRequest] | None = None) -> LoadClient:
    composer = Composer(dialect=ready.dialect, model=ready.endpoint.model, salt=salt)
    return LoadClient(
        endpoint=ready.endpoint,
        session=ready.engine.session,
        salt=salt,
        timeout=REQUEST_SECONDS,
        max_in_flight=100_000,
        compose=composer if plan is None else Prepared(composer, plan),
        exact=False,
        keep_text=plan is not None,
    )
