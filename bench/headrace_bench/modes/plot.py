"""Plots the comparison: waits for the first token, gaps between tokens, and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace_bench.errors import BenchError
from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import Cells, Runs
from headrace_core.workload.plans import RequestKind

COLOURS = {Mode.STATIC: "#8c8c8c", Mode.CONTINUOUS: "#d9822b", Mode.CHUNKED: "#1f77b4"}
NAMES = {Mode.STATIC: "static", Mode.CONTINUOUS: "continuous", Mode.CHUNKED: "continuous + chunks"}
SIZE, DPI = (15.0, 5.2), 130
SHORTEST_GAP = 1e-3  # seconds; tokens that arrive together have no gap


def draw(path: Path, cells: Cells, runs: Runs, *, title: str) -> None:
    """Write the PNG. Raises `BenchError` if it cannot be written."""
    import matplotlib as mpl  # noqa: PLC0415  (takes a second, and only this function needs it)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    figure, panels = plt.subplots(1, 3, figsize=SIZE, constrained_layout=True)
    try:
        _ttft(panels[0], runs, cells)
        _gaps(panels[1], runs)
        _served(panels[2], cells)
        for panel in panels:
            panel.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=11)
        keys = [Patch(color=COLOURS[mode], label=NAMES[mode]) for mode in Mode]
        figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False)
        figure.savefig(path, dpi=DPI, format="png")
    except OSError as error:
        raise BenchError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        plt.close(figure)


def _ttft(panel: Any, runs: Runs, cells: Cells) -> None:
    """Share of the requests still waiting for their first token, by time: a line meets the p95 mark at its p95."""
    for mode in Mode:
        found = runs.get((Level.HIGH, mode), ())
        for kind, style in ((RequestKind.SHORT, "-"), (RequestKind.LONG, ":")):
            waits = [(run.waited(item), item.ttft is None) for run in found for item in run.inside if item.kind is kind]
            known = sorted((wait, bound) for wait, bound in waits if wait is not None)
            if known:
                _survival(panel, known, color=COLOURS[mode], linestyle=style)
    offered = next((cell.offered for (level, _), cell in cells.items() if level is Level.HIGH), None)
    at = f" at {offered:.2g} requests/s" if offered else ""
    panel.set_title(f"Waiting for the first token{at}", fontsize=10)
    panel.set_xlabel("seconds since the planned arrival (solid: short prompts, dotted: long)")
    _seconds_axis(panel)
    _tail_axis(panel, lowest=0.008)


def _seconds_axis(panel: Any) -> None:
    """A logarithmic axis of seconds, readable whether it spans a decade or four."""
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())


def _tail_axis(panel: Any, *, lowest: float) -> None:
    """A logarithmic axis of shares, marked at the common percentiles."""
    ticks = {1.0: "all", 0.5: "p50", 0.05: "p95", 0.01: "p99", 0.001: "p99.9"}
    shown = {share: name for share, name in ticks.items() if share >= lowest}
    panel.set_yscale("log")
    panel.set_ylim(lowest, 1.15)
    panel.set_yticks(list(shown), list(shown.values()))
    panel.tick_params(axis="y", which="minor", left=False, labelleft=False)
    panel.grid(visible=True, which="major", alpha=0.3)


def _survival(panel: Any, known: Sequence[tuple[float, bool]], **style: Any) -> None:
    """A step down at each first token; a request without one leaves the line where it is."""
    times, shares, left = [known[0][0] * 0.8], [1.0], len(known)
    for wait, bound in known:
        if bound:
            break
        left -= 1
        times.append(wait)
        shares.append(left / len(known))
    if left:
        times.append(max(wait for wait, _ in known))
        shares.append(left / len(known))
    panel.step(times, shares, where="post", linewidth=1.8, **style)


def _gaps(panel: Any, runs: Runs) -> None:
    """Share of the gaps between tokens that are longer than each value."""
    usual: list[float] = []  # the first percentile of each mode's gaps
    for mode in Mode:
        gaps = sorted(gap for run in runs.get((Level.HIGH, mode), ()) for item in run.inside for gap in item.gaps)
        if gaps:
            shares = [1 - at / len(gaps) for at in range(len(gaps))]
            panel.step(gaps, shares, where="post", linewidth=1.8, color=COLOURS[mode])
            usual.append(gaps[len(gaps) // 100])
    panel.set_title("Gaps between tokens at the same load", fontsize=10)
    panel.set_xlabel("seconds")
    _seconds_axis(panel)
    panel.set_xlim(left=max(SHORTEST_GAP, 0.5 * min(usual, default=0.0)))
    _tail_axis(panel, lowest=0.0008)


def _served(panel: Any, cells: Cells) -> None:
    """Tokens a second at each level, with the range over visits and the busy share."""
    levels = [level for level in (Level.LOW, Level.HIGH, Level.FULL) if any(key[0] is level for key in cells)]
    width = 0.8 / len(Mode)
    for place, mode in enumerate(Mode):
        for index, level in enumerate(levels):
            cell = cells.get((level, mode))
            if cell is None:
                continue
            rates, at = cell.tokens_per_second, index + (place - 1) * width
            height = fmean(rates)
            panel.bar(at, height, width * 0.94, color=COLOURS[mode])
            panel.plot([at, at], [min(rates), max(rates)], color="black", linewidth=1)
            busy = f"\n{fmean(cell.busy):.0%}" if cell.busy else ""
            panel.annotate(
                f"{height:.3g}{busy}", (at, max(height, *rates)), ha="center", va="bottom", fontsize=8, xytext=(0, 2),
                textcoords="offset points",
            )  # fmt: skip
    panel.set_xticks(range(len(levels)), [f"{level} load" for level in levels])
    panel.set_title("Output tokens a second, and share of time with a step running", fontsize=10)
    panel.margins(y=0.1)
