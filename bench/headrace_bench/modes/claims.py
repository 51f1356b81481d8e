"""The claims about the modes, each with its load, its figures, and whether it held. Pure.

A cut of a tail holds only if its whole 95 % interval is beyond the target; if the interval straddles the target, the
run cannot tell. Throughput and busy share hold if every visit shows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import Cell, Cells, LevelRun, Runs
from headrace_bench.serve.compare import Ratio, bootstrap_ratio
from headrace_core.workload.plans import RequestKind

CUT = 0.40
SPEED_UP, SPEED_UP_MOST = 2.0, 3.0
BUSY = 0.85
LOADS = (Level.HIGH, Level.LOW)


class ClaimVerdict(StrEnum):
    """Whether a claim held in the run."""

    HELD = "held"
    NOT_HELD = "not held"
    UNCLEAR = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim at one load. `value` with its interval in the claim's own unit; `figures` as text."""

    name: str
    about: str
    level: Level
    target: float
    value: float | None
    low: float | None
    high: float | None
    figures: str
    verdict: ClaimVerdict

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A side effect of chunked prefill: a figure without and with it, and their ratio."""

    about: str
    level: Level
    without: float
    with_chunks: float

    @property
    def ratio(self) -> float:
        """With over without."""
        return self.with_chunks / self.without if self.without else float("inf")


def check_claims(cells: Cells, runs: Runs) -> list[Claim]:
    """All claims, each under every load where it can be checked."""
    found = [
        claim
        for level in LOADS
        for kind in (RequestKind.SHORT, None)
        for percent in (95, 99)
        if (claim := _cut(cells, runs, level, kind, percent)) is not None
    ]
    for level in (Level.FULL, Level.HIGH, Level.LOW):
        for mode in (Mode.CONTINUOUS, Mode.CHUNKED):
            claim = _speed_up(cells, level, mode)
            found += [claim] if claim else []
    for level in (Level.FULL, Level.HIGH, Level.LOW):
        claim = _busy(cells, level)
        found += [claim] if claim else []
    return found


def prices(cells: Cells) -> list[Price]:
    """The side effects of chunking, in the figures that it is not meant for."""
    found = []
    for level in LOADS:
        without, chunked = cells.get((level, Mode.CONTINUOUS)), cells.get((level, Mode.CHUNKED))
        if without is None or chunked is None:
            continue
        pairs = [
            ("TTFT p50 of long prompts", without.ttft_long, chunked.ttft_long, "p50"),
            ("TTFT max of long prompts", without.ttft_long, chunked.ttft_long, "max"),
            ("ITL p50", without.itl, chunked.itl, "p50"),
            ("ITL p99", without.itl, chunked.itl, "p99"),
            ("ITL max", without.itl, chunked.itl, "max"),
        ]
        found += [
            Price(about=about, level=level, without=getattr(old, name), with_chunks=getattr(new, name))
            for about, old, new, name in pairs
            if old is not None and new is not None
        ]
    return found


def _cut(cells: Cells, runs: Runs, level: Level, kind: RequestKind | None, percent: int) -> Claim | None:
    sides = [runs.get((level, mode)) for mode in (Mode.CONTINUOUS, Mode.CHUNKED)]
    if not all(sides):
        return None
    before, after = (_samples(side or (), kind) for side in sides)
    plans = [_numbers(side or (), kind) for side in sides]
    ratio = bootstrap_ratio(before, after, percent, paired=plans[0] == plans[1])
    if ratio is None:
        return None
    who = "all requests" if kind is None else "short requests"
    bounds = [cells[level, mode] for mode in (Mode.CONTINUOUS, Mode.CHUNKED)]
    beyond = [f"p{percent}" in (tail.beyond if (tail := _tail(cell, kind)) else ()) for cell in bounds]
    return Claim(
        name=f"chunking cuts TTFT tails by {CUT:.0%} or more",
        about=f"p{percent} of {who}",
        level=level,
        target=CUT,
        value=1 - ratio.ratio,
        low=None if ratio.high is None else 1 - ratio.high,
        high=None if ratio.low is None else 1 - ratio.low,
        figures=f"{_seconds(ratio.before, beyond[0])} to {_seconds(ratio.after, beyond[1])}",
        verdict=_cut_verdict(ratio, unknown=beyond[1]),
    )


def _cut_verdict(ratio: Ratio, *, unknown: bool) -> ClaimVerdict:
    """The verdict on a ratio. `unknown`: the figure with chunks is itself only a lower bound."""
    most = 1 - CUT
    if ratio.low is None or ratio.high is None:
        return ClaimVerdict.UNCLEAR  # too few requests
    if unknown:
        return ClaimVerdict.UNCLEAR if ratio.ratio <= most else ClaimVerdict.NOT_HELD
    if ratio.high <= most:
        return ClaimVerdict.HELD
    return ClaimVerdict.NOT_HELD if ratio.low > most else ClaimVerdict.UNCLEAR


def _speed_up(cells: Cells, level: Level, mode: Mode) -> Claim | None:
    static, other = cells.get((level, Mode.STATIC)), cells.get((level, mode))
    if static is None or other is None or min(static.tokens_per_second, default=0.0) <= 0:
        return None
    ratios = [new / old for old, new in zip(static.tokens_per_second, other.tokens_per_second, strict=True)]
    value = statistics.fmean(other.tokens_per_second) / statistics.fmean(static.tokens_per_second)
    return Claim(
        name=f"continuous batching gives {SPEED_UP:g} to {SPEED_UP_MOST:g} times static throughput",
        about="with chunks" if mode is Mode.CHUNKED else "without chunks",
        level=level,
        target=SPEED_UP,
        value=value,
        low=min(ratios),
        high=max(ratios),
        figures=f"{statistics.fmean(static.tokens_per_second):.1f} to "
        f"{statistics.fmean(other.tokens_per_second):.1f} tokens/s",
        verdict=_all_or_none([ratio >= SPEED_UP for ratio in ratios]),
    )


def _busy(cells: Cells, level: Level) -> Claim | None:
    cell = cells.get((level, Mode.CHUNKED))
    if cell is None or not cell.busy:
        return None
    return Claim(
        name=f"the device is busy more than {BUSY:.0%} of the time under load",
        about="with chunks",
        level=level,
        target=BUSY,
        value=statistics.fmean(cell.busy),
        low=min(cell.busy),
        high=max(cell.busy),
        figures=", ".join(f"{share:.1%}" for share in cell.busy),
        verdict=_all_or_none([share > BUSY for share in cell.busy]),
    )


def _all_or_none(held: Sequence[bool]) -> ClaimVerdict:
    if all(held):
        return ClaimVerdict.HELD
    return ClaimVerdict.UNCLEAR if any(held) else ClaimVerdict.NOT_HELD


def _samples(runs: Sequence[LevelRun], kind: RequestKind | None) -> list[float | None]:
    return [run.waited(record) for run in runs for record in run.inside if kind in (None, record.kind)]


def _numbers(runs: Sequence[LevelRun], kind: RequestKind | None) -> list[tuple[int, int]]:
    return [
        (run.repetition, record.number) for run in runs for record in run.inside if kind in (None, record.kind)
    ]  # fmt: skip


def _tail(cell: Cell, kind: RequestKind | None) -> Any:
    return cell.ttft if kind is None else cell.ttft_short


def _seconds(value: float, beyond: bool) -> str:
    return f"{'>' if beyond else ''}{value:.2f} s"
