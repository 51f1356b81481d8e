"""What one mode showed at one level, over all its visits. Pure.

A request without a first token by the end of the drain is not left out: its wait was at least that long, and a
percentile that falls on such a request is shown as "more than".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace_bench.modes.design import Level, Mode
from headrace_bench.serve.result import ServeWindow, rates_inside
from headrace_bench.serve.steady import Trend, steadiness
from headrace_bench.serve.watch import Health, client_limits
from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.evidence.percentiles import PERCENTILES, Distribution, distribution
from headrace_core.workload.plans import RequestKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRun:
    """One mode at one level in one visit. `rate`: offered requests a second, None in a closed loop.

    Records are of all requests; `window` is the measured part; `ended`: when unfinished requests were given up. Seconds
    since the start of the load. `busy`: share of the window that the engine spent in steps.
    """

    mode: Mode
    level: Level
    repetition: int
    rate: float | None
    records: Sequence[RequestRecord]
    window: ServeWindow
    ended: float
    busy: float
    health: Health

    @property
    def inside(self) -> list[RequestRecord]:
        """The requests that count, in the order of their plan. In a closed loop all do: arrivals depend on answers."""
        begin, end = (-math.inf, math.inf) if self.level is Level.FULL else (self.window.begin, self.window.end)
        found = [record for record in self.records if begin <= record.planned_at <= end]
        return sorted(found, key=lambda record: record.number)

    def waited(self, record: RequestRecord) -> float | None:
        """TTFT, or the time waited without a first token; None for a request that failed in another way."""
        if record.ttft is not None:
            return record.ttft
        return self.ended - record.planned_at if record.error == ErrorKind.UNFINISHED else None


@dataclass(frozen=True, slots=True)
class Tail:
    """Percentiles in seconds; those in `beyond` are lower bounds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One mode at one level. Rates of each visit, per second; `trends` of each open-loop visit."""

    mode: Mode
    level: Level
    offered: float | None
    planned: int
    answered: int
    errors: dict[str, int]
    ttft: Tail | None
    ttft_short: Tail | None
    ttft_long: Tail | None
    itl: Distribution | None
    tpot: Distribution | None
    requests_per_second: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    busy: tuple[float, ...]
    trends: tuple[Trend, ...]
    client_limits: tuple[str, ...]

    @property
    def overloaded(self) -> bool:
        """Whether the queue grew in any visit."""
        return Trend.OVERLOADED in self.trends or "unfinished" in self.errors

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


Cells = Mapping[tuple[Level, Mode], Cell]
Runs = Mapping[tuple[Level, Mode], Sequence[LevelRun]]


def tail(values: Sequence[tuple[float, bool]]) -> Tail | None:
    """Percentiles of values of which some (True) are lower bounds; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    first_bound = next((value for value, bound in ordered if bound), math.inf)
    p50, p95, p99 = (_rank(ordered, percent) for percent in PERCENTILES)
    named = {"p50": p50, "p95": p95, "p99": p99, "max": ordered[-1][0]}
    beyond = tuple(name for name, value in named.items() if value >= first_bound)
    return Tail(len(ordered), p50, p95, p99, named["max"], beyond)


def make_cell(runs: Sequence[LevelRun], *, batch: int) -> Cell:
    """All visits of one mode at one level together. `batch`: how many sequences run at once."""
    first, records = runs[0], [record for run in runs for record in run.inside]
    waits = [(run, record) for run in runs for record in run.inside]
    open_loop = first.level is not Level.FULL
    limits = {reason: None for run in runs for reason in client_limits(run.health, run.inside)}
    rates = [throughput(run, batch=batch) for run in runs]
    errors = [record.error for record in records if record.error and (open_loop or record.error != "unfinished")]
    return Cell(
        mode=first.mode,
        level=first.level,
        offered=first.rate,
        planned=len(records),
        answered=sum(record.error is None for record in records),
        errors={kind: errors.count(kind) for kind in sorted(set(errors))},
        ttft=_ttft(waits) if open_loop else None,
        ttft_short=_ttft(waits, RequestKind.SHORT) if open_loop else None,
        ttft_long=_ttft(waits, RequestKind.LONG) if open_loop else None,
        itl=distribution(gap for record in records for gap in record.gaps),
        tpot=distribution(record.tpot for record in records if record.tpot is not None),
        requests_per_second=tuple(requests for requests, _ in rates),
        tokens_per_second=tuple(tokens for _, tokens in rates),
        busy=tuple(run.busy for run in runs),
        trends=tuple(_trend(run) for run in runs) if open_loop else (),
        client_limits=tuple(limits),
    )


def throughput(run: LevelRun, *, batch: int) -> tuple[float, float]:
    """Requests and tokens a second.

    Static batching under full load is counted in whole batches: a window that ends inside one would credit it with its
    full beginning but leave out its nearly empty end.
    """
    if run.mode is Mode.STATIC and run.level is Level.FULL:
        whole = _whole_batches(run.records, batch)
        if whole is not None:
            return whole
    rates = rates_inside(run.records, run.window)
    return rates.requests, rates.tokens


def group(runs: Sequence[LevelRun]) -> dict[tuple[Level, Mode], list[LevelRun]]:
    """The visits of each level and mode, in order of repetition."""
    found: dict[tuple[Level, Mode], list[LevelRun]] = {}
    for run in sorted(runs, key=lambda run: run.repetition):
        found.setdefault((run.level, run.mode), []).append(run)
    return found


def make_cells(runs: Sequence[LevelRun], *, batch: int) -> Mapping[tuple[Level, Mode], Cell]:
    """Every level and mode."""
    return {key: make_cell(found, batch=batch) for key, found in group(runs).items()}


def _whole_batches(records: Sequence[RequestRecord], batch: int) -> tuple[float, float] | None:
    """Requests of the first batches that have ended: batches run in turn, so first tokens come batch by batch."""
    started = sorted(
        (record for record in records if record.ttft is not None),
        key=lambda record: record.planned_at + (record.ttft or 0.0),
    )
    ended = 0
    while ended + batch <= len(started) and all(item.error is None for item in started[ended : ended + batch]):
        ended += batch
    if not ended:
        return None
    done = started[:ended]
    seconds = max(record.planned_at + (record.e2e or 0.0) for record in done)
    return ended / seconds, sum(record.output_tokens for record in done) / seconds


def _ttft(waits: Sequence[tuple[LevelRun, RequestRecord]], kind: RequestKind | None = None) -> Tail | None:
    return tail(
        [
            (seconds, record.ttft is None)
            for run, record in waits
            if kind in (None, record.kind) and (seconds := run.waited(record)) is not None
        ]
    )


def _trend(run: LevelRun) -> Trend:
    return steadiness(run.records, begin=run.window.begin, end=run.window.end).trend


def _rank(ordered: Sequence[tuple[float, bool]], percent: int) -> float:
    return ordered[max(1, math.ceil(percent * len(ordered) / 100)) - 1][0]
