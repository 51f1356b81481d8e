"""One run against a server: agree on a dialect, plan, send, watch the client itself, compute the result."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from headrace_bench.errors import BenchError
from headrace_bench.host_info import describe_machine, load_average
from headrace_bench.serve.options import Asked, ServeOptions, understand
from headrace_bench.serve.probe import ServerDialect, probe
from headrace_bench.serve.prompts import Composer, Prepared
from headrace_bench.serve.result import SCHEMA, ServeResult, ServeWindow, evaluate, to_json
from headrace_bench.serve.traces import read_trace
from headrace_bench.serve.watch import Health, client_limits, watching
from headrace_bench.server_facts import server_facts
from headrace_client.load.client import (
    Endpoint,
    LoadClient,
    RequestRecord,
    find_endpoint,
    load_session,
)
from headrace_core.workload.plans import PlannedRequest, endless, last_arrival, with_warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGoal:
    """What a display needs to know of a load that begins. `requests` None: their number is unknown."""

    title: str
    seconds: float | None
    warmup: float
    requests: int | None
    rate: float | None


class Display(Protocol):
    """Shows a load while it runs."""

    def showing(self, goal: LoadGoal, client: LoadClient) -> AbstractContextManager[object]:
        """A context in which the client's progress is shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished run: its options, server, plan, result and warnings."""

    options: ServeOptions
    asked: Asked
    endpoint: Endpoint
    probed: ServerDialect
    result: ServeResult
    health: Health
    limits: tuple[str, ...]
    records: Sequence[RequestRecord]
    window: ServeWindow
    environment: dict[str, Any]
    interrupted: bool

    @property
    def mode(self) -> str:
        """What kind of load it was, in a few words."""
        if self.options.concurrency is not None:
            return f"closed loop, {self.options.concurrency} at once: says nothing about a rate"
        return f"open loop, {self._source()}"

    def _source(self) -> str:
        if self.options.trace is not None:
            return f"trace {self.options.trace.name}"
        arrivals = self.asked.arrivals
        ramp = f" rising to {arrivals.ramp_to:g}" if arrivals.ramp_to is not None else ""
        return f"{arrivals.process} {arrivals.rate:g}/s{ramp}"

    def to_json(self) -> dict[str, Any]:
        """The whole result file."""
        dialect = asdict(self.probed.dialect)
        return {
            "schema": SCHEMA,
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "mode": self.mode,
            "seed": self.options.seed,
            "interrupted": self.interrupted,
            "load": self.options.to_json(),
            "window": asdict(self.window),
            "slo": self.asked.slo.to_dict(),
            **to_json(self.result),
            "client": {**asdict(self.health), "limits": list(self.limits), "limited": bool(self.limits)},
            "server": {
                "dialect": dialect,
                "notes": list(self.probed.notes),
                "max_model_len": self.endpoint.max_model_len,
            },
            "environment": self.environment,
            "samples": [sample(record) for record in self.records if self.window.begin <= record.planned_at],
        }


def sample(record: RequestRecord) -> dict[str, Any]:
    """A request in the result file: what a comparison of two runs needs."""
    return {
        "number": record.number,
        "ttft": record.ttft if record.error is None else None,
        "tpot": record.tpot,
        "worst_gap": max(record.gaps) if record.gaps and record.error is None else None,
        "e2e": record.e2e,
        "tokens": record.output_tokens,
        "error": record.error,
    }


async def run_serve(url: str, options: ServeOptions, display: Display) -> Ran:
    """Do one run. Raises `BenchError` if it cannot be done. Ctrl-C ends it early with the results so far."""
    asked = understand(options)
    trace = _trace(options)
    async with load_session(asked.headers, keep_alive=options.keep_alive) as session:
        endpoint = await find_endpoint(session, url, options.model)
        _check_fits(asked, endpoint, trace)
        probed = await probe(session, endpoint, asked.dialect)
        salt = options.salt or secrets.token_hex(4)  # a second run must not find the first one's prompts in a cache
        composer = Composer(dialect=probed.dialect, model=endpoint.model, salt=salt)
        environment = describe_machine() | {"server": await server_facts(session, endpoint.url)}
        load = _Load(options, asked, _plan(options, asked, trace), _window(options, asked, trace))
        async with watching() as watch:
            interrupted = await load.run(session, endpoint, composer, display)
            health = watch.health()
    environment["load_average_after"] = load_average()
    records = sorted(load.records, key=lambda record: (record.planned_at, record.number))
    return Ran(
        options=options,
        asked=asked,
        endpoint=endpoint,
        probed=probed,
        result=evaluate(records, load.window, slo=asked.slo),
        health=health,
        limits=client_limits(health, records),
        records=records,
        window=load.window,
        environment=environment,
        interrupted=interrupted,
    )


class _Load:
    """The sending of one run. Records are kept as requests end, so that an interrupted run has them."""

    def __init__(
        self, options: ServeOptions, asked: Asked, plan: Sequence[PlannedRequest] | None, window: ServeWindow
    ) -> None:
        self._options, self._asked, self._plan = options, asked, plan
        self.window = window
        self.records: list[RequestRecord] = []

    async def run(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, composer: Composer, display: Display
    ) -> bool:
        """Send everything. Returns whether it was interrupted."""
        compose = composer if self._plan is None else Prepared(composer, self._plan)
        client = LoadClient(
            endpoint=endpoint,
            session=session,
            salt=composer.salt,
            timeout=self._options.timeout,
            max_in_flight=self._options.max_in_flight,
            on_end=self.records.append,
            compose=compose,
            exact=False,
        )
        loop = asyncio.get_running_loop()
        start, interrupted = loop.time(), False
        with display.showing(self._goal(), client):
            try:
                await self._send(client)
            except asyncio.CancelledError:
                if not self.records:
                    raise
                interrupted = True
        if interrupted or self.window.end == math.inf:
            self.window = replace(self.window, end=max(self.window.begin, loop.time() - start))
        return interrupted

    async def _send(self, client: LoadClient) -> None:
        options = self._options
        if options.concurrency is None:
            await client.open_loop(self._plan or (), drain=options.drain)
            return
        source = islice(endless(self._asked.shape, options.seed), options.requests)
        await client.closed_loop(source, concurrency=options.concurrency, duration=self.window.end)

    def _goal(self) -> LoadGoal:
        options, plan = self._options, self._plan
        return LoadGoal(
            title=f"{options.concurrency} at once" if options.concurrency else "load",
            seconds=None if self.window.end == math.inf else self.window.end,
            warmup=self.window.begin,
            requests=options.requests if plan is None else len(plan),
            rate=None if plan is None or not self.window.end else len(plan) / self.window.end,
        )


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """One JSON line a request. Raises `BenchError`."""
    try:
        with path.open("w") as file:
            for record in records:
                line = asdict(record) | {"lag": record.lag, "tpot": record.tpot}
                file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise BenchError(f"--records {path}: cannot be written: {error.strerror}") from error


def _trace(options: ServeOptions) -> list[PlannedRequest] | None:
    if options.trace is None:
        return None
    return read_trace(
        options.trace, unit=options.trace_unit.value, scale=options.time_scale, limit=options.requests
    )  # fmt: skip


def _plan(options: ServeOptions, asked: Asked, trace: list[PlannedRequest] | None) -> list[PlannedRequest] | None:
    if trace is not None or options.concurrency is not None:
        return trace
    return with_warmup(
        asked.arrivals,
        asked.shape,
        requests=asked.requests,
        duration=asked.duration,
        warmup=options.warmup,
        seed=options.seed,
    )


def _window(options: ServeOptions, asked: Asked, trace: list[PlannedRequest] | None) -> ServeWindow:
    if options.concurrency is not None and options.requests is not None:
        return ServeWindow(begin=options.warmup, end=math.inf)  # known when the last has ended
    if trace is None:
        return ServeWindow(begin=options.warmup, end=options.warmup + asked.duration)
    end = last_arrival(trace)
    if options.warmup > end:
        raise BenchError(f"--warmup {options.warmup:g} leaves nothing of the trace, which takes {end:g} s")
    return ServeWindow(begin=options.warmup, end=end)


def _check_fits(asked: Asked, endpoint: Endpoint, trace: list[PlannedRequest] | None) -> None:
    limit = endpoint.max_model_len
    if limit is None:
        return
    longest = asked.shape.longest
    if trace is not None:
        made = (item.prompt_tokens + item.output_tokens for item in trace if item.content is None)
        longest = max(made, default=0)
    if longest > limit:
        flags = "the trace holds" if trace is not None else "--prompt-tokens, --long-prompt-tokens, --output-tokens:"
        raise BenchError(f"{flags} a request of up to {longest} tokens; {endpoint.model} takes {limit}")
