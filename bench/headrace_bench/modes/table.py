"""The final report: the modes side by side, each claim with its figures, side effects, and whether answers agree.

Everything fits 80 columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from headrace_bench.modes.claims import Claim, ClaimVerdict, Price
from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.equal import Equality
from headrace_bench.modes.outcome import Cell, Tail
from headrace_bench.serve.show import ENOUGH
from headrace_core.evidence.percentiles import duration

COLOURS = {ClaimVerdict.HELD: "green", ClaimVerdict.NOT_HELD: "red", ClaimVerdict.UNCLEAR: "yellow"}
HEADS = (
    "load", "mode", "TTFT\np50", "\np95", "\np99", "short\np95", "\np99", "ITL\np50", "\np99", "\nmax",
    "\nreq/s", "\ntok/s", "\nbusy",
)  # fmt: skip
UNITS = "[dim]TTFT in seconds from the planned arrival, of all requests and of the short ones; ITL in milliseconds[/]"
TEXT_COLUMNS = 2
NARROW = (
    f"[dim]Intervals are of 95 %, from resampled stretches of requests; that of p99 is too narrow below "
    f"{ENOUGH['p99']} requests. Those of throughput and busy share are the range over the visits.[/]"
)


def modes_table(cells: Mapping[tuple[Level, Mode], Cell], *, title: str) -> RenderableType:
    """The modes at each level."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index < TEXT_COLUMNS else "right", no_wrap=True)
    for level in (Level.LOW, Level.HIGH, Level.FULL):
        rows = [cells[level, mode] for mode in Mode if (level, mode) in cells]
        for index, cell in enumerate(rows):
            table.add_row(level.value if not index else "", *_row(cell), end_section=index == len(rows) - 1)
    return Group(f"[bold]{escape(title)}[/]", UNITS, table)


def _row(cell: Cell) -> list[str]:
    itl = cell.itl
    milliseconds = [f"{1e3 * value:.0f}" for value in (itl.p50, itl.p99, itl.max)] if itl else ["-"] * 3
    mode = f"[red]{cell.mode}[/]" if cell.overloaded else cell.mode.value
    return [
        mode,
        *_percentiles(cell.ttft, "p50", "p95", "p99"),
        *_percentiles(cell.ttft_short, "p95", "p99"),
        *milliseconds,
        _short(statistics.fmean(cell.requests_per_second)),
        _short(statistics.fmean(cell.tokens_per_second)),
        f"{statistics.fmean(cell.busy):.0%}",
    ]


def _percentiles(tail: Tail | None, *names: str) -> list[str]:
    if tail is None:
        return ["-"] * len(names)
    return [("[red]>[/]" if name in tail.beyond else "") + _short(getattr(tail, name)) for name in names]


def _short(value: float) -> str:
    """At most five characters up to 99999."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def machine_notes(environment: Mapping[str, Any]) -> list[str]:
    """The machine, and its load before and after."""
    cores, loads = environment.get("cores"), [environment.get(f"load_average{when}") for when in ("", "_after")]
    if not cores or None in loads:
        return []
    text = f"machine: {environment.get('cpu', '?')}, {cores} cores; load average {loads[0]:.1f} before"
    return [f"{text}, {loads[1]:.1f} after"]


def cell_notes(cells: Mapping[tuple[Level, Mode], Cell]) -> list[str]:
    """How many requests the figures rest on, and what went wrong."""
    notes = []
    for level in (Level.LOW, Level.HIGH, Level.FULL):
        rows = [cells[level, mode] for mode in Mode if (level, mode) in cells]
        if not rows:
            continue
        offered = rows[0].offered
        what = "closed loop, no rate" if offered is None else f"{offered:.2f} requests/s offered"
        counts = ", ".join(f"{cell.mode} {cell.answered}/{cell.planned}" for cell in rows)
        notes.append(f"{level}: {what}; answered of planned: {counts}")
        growing = [cell.mode.value for cell in rows if cell.overloaded]
        if growing:
            notes.append(
                f"{level}: [red]overloaded[/]: {', '.join(growing)}; its TTFT depends on the length of the window"
            )
        for cell in rows:
            broken = {kind: count for kind, count in cell.errors.items() if kind != "unfinished"}
            if broken:
                notes.append(f"{level}, {cell.mode}: [red]errors {broken}[/]")
            limit = f"{level}, {cell.mode}: [red]the client was a limit[/]"
            notes += [f"{limit}: {escape(reason)}" for reason in cell.client_limits]
    return notes


def claims_tables(claims: Sequence[Claim]) -> RenderableType:
    """One small table a claim, since a table has no cell over all columns."""
    parts: list[RenderableType] = []
    for name in dict.fromkeys(claim.name for claim in claims):
        table = Table(box=None, pad_edge=False)
        for head in ("load", "of", "figures", "value", "interval", "verdict"):
            table.add_column(head, justify="right" if head in ("value", "interval") else "left")
        for claim in claims:
            if claim.name == name:
                verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]"
                table.add_row(
                    claim.level.value, claim.about, claim.figures, _value(claim, claim.value), _interval(claim), verdict
                )
        parts += [f"[bold]Claim: {name}[/]", table, ""]
    return Group(*parts, NARROW, "")


def price_table(found: Sequence[Price]) -> RenderableType:
    """The side effects of chunking, beside TTFT tails."""
    table = Table(title="What else chunking does", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("load", "of", "without", "with", "ratio"):
        table.add_column(name, justify="left" if name in ("load", "of") else "right")
    for price in found:
        colour = "red" if price.ratio > 1.05 else "green" if price.ratio < 0.95 else "dim"
        table.add_row(
            price.level.value, price.about, duration(price.without), duration(price.with_chunks),
            f"[{colour}]{price.ratio:.2f}[/]",
        )  # fmt: skip
    return table


def equality_lines(found: Sequence[Equality]) -> list[str]:
    """Whether the answers agree, a pair of modes a line."""
    lines = []
    for item in found:
        who = f"{item.first} and {item.second}" if item.first is not item.second else f"{item.first} with itself"
        line = f"{who}: {item.equal} of {item.compared} greedy answers equal"
        if item.difference is not None:
            parted = item.difference
            line += f"; the first differs ({parted.level} load, request {parted.number}) at character {parted.at} of "
            line += escape(f"{parted.length}: {parted.first!r} / {parted.second!r}")
        lines.append(line)
    return lines


def _value(claim: Claim, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}x" if claim.target > 1 else f"{value:.0%}"


def _interval(claim: Claim) -> str:
    if claim.low is None or claim.high is None:
        return "-"
    return f"{_value(claim, claim.low)} to {_value(claim, claim.high)}"
