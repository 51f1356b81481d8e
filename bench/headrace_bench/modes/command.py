"""`headrace bench modes [MODEL]`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace_bench.command_options import with_options
from headrace_bench.modes.claims import Claim, Price, check_claims, prices
from headrace_bench.modes.design import Mode
from headrace_bench.modes.equal import Equality, compare_answers
from headrace_bench.modes.options import ModesOptions
from headrace_bench.modes.outcome import Cells, LevelRun, Runs, group, make_cells
from headrace_bench.modes.plot import draw
from headrace_bench.modes.run import Compared, compare_modes, out_file
from headrace_bench.modes.table import (
    cell_notes,
    claims_tables,
    equality_lines,
    machine_notes,
    modes_table,
    price_table,
)
from headrace_bench.serve.run import sample
from headrace_client.load.client import LoadClient
from headrace_client.terminal import console, plain_errors, run_async, write_json

SCHEMA = "headrace.bench.modes/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The measurements with the claims, side effects and differences drawn from them."""

    compared: Compared
    cells: Cells
    runs: Runs
    claims: list[Claim]
    prices: list[Price]
    equality: list[Equality]

    @classmethod
    def of(cls, compared: Compared) -> Judged:
        """Judge a comparison."""
        runs = group(compared.runs)
        cells = make_cells(compared.runs, batch=compared.setting.design.max_num_seqs)
        return cls(
            compared=compared,
            cells=cells,
            runs=runs,
            claims=check_claims(cells, runs),
            prices=prices(cells),
            equality=compare_answers(compared.runs),
        )

    @property
    def title(self) -> str:
        """Model, device and common settings in one line."""
        facts, design = self.compared.calibration.facts, self.compared.setting.design
        name = facts.get("model") or Path(self.compared.model).name
        device = f"{facts.get('device', '?')} {facts.get('dtype', '')}".strip()
        threads = self.compared.options.engine_threads
        return (
            f"{name}, {device}, {threads} thread{'s' * (threads > 1)}; {design.max_num_seqs} sequences, "
            f"budget {design.budget}, chunk {design.chunk}, long prompts {design.shape.long}"
        )

    def to_json(self) -> dict[str, Any]:
        """The whole result file."""
        compared = self.compared
        return {
            "schema": SCHEMA,
            "model": compared.model,
            "seed": compared.options.seed,
            "asked": compared.options.to_json(),
            "environment": compared.environment,
            "calibration": asdict(compared.calibration),
            "knobs": {mode: compared.setting.design.knobs(mode) for mode in Mode},
            "load": _shape(compared),
            "rates": asdict(compared.setting.rates),
            "windows": asdict(compared.setting.windows),
            "speed_against_prediction": compared.factor,
            "seconds": compared.seconds,
            "cells": [cell.to_json() for cell in self.cells.values()],
            "claims": [claim.to_json() for claim in self.claims],
            "prices": [asdict(price) | {"ratio": price.ratio} for price in self.prices],
            "answers": [asdict(item) for item in self.equality],
            "visits": [_visit(run) for run in compared.runs],
        }


def bench_modes_result(judged: Judged) -> RenderableType:
    """The whole result for a terminal."""
    parts: list[RenderableType] = [modes_table(judged.cells, title=judged.title)]
    parts += [
        *machine_notes(judged.compared.environment),
        *cell_notes(judged.cells),
        "",
        claims_tables(judged.claims),
        price_table(judged.prices),
        "",
    ]
    parts.append(Text("Answers", style="bold"))
    return Group(*parts, *equality_lines(judged.equality))


@with_options(ModesOptions)
def bench_modes(
    model: Annotated[
        str | None, typer.Argument(help="Folder, .gguf file or hub id. Default: the demo model.", show_default=False)
    ] = None,
    *,
    options: ModesOptions,
) -> None:
    """Static batching, continuous batching, and that with chunked prefill, under the same load on this machine.

    Starts a new engine for each visit. Reports which claims held under which load.
    """
    with plain_errors(), _shown(console) as stage:
        compared = run_async(compare_modes(options, model, stage))
    judged = Judged.of(compared)
    console.print(bench_modes_result(judged))
    with plain_errors():
        result = judged.to_json()
        text = json.dumps(result, indent=1)
        written = out_file(options.out, "modes.json", lambda path: _write(path, text))
        picture = out_file(
            options.out, "modes.png", lambda path: draw(path, judged.cells, judged.runs, title=judged.title)
        )
        if options.json is not None:
            write_json(options.json, result)
    console.print(f"\n{compared.seconds:.0f} s; written: {written}, {picture}, logs in {options.out / 'logs'}")


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n")


def _shape(compared: Compared) -> dict[str, Any]:
    shape = compared.setting.design.shape
    return {
        "prompt_tokens": str(shape.prompt),
        "long_prompt_tokens": str(shape.long),
        "long_share": shape.long_share,
        "output_tokens": str(shape.output),
    }


def _visit(run: LevelRun) -> dict[str, Any]:
    own = {name: getattr(run, name) for name in ("mode", "level", "repetition", "rate", "ended", "busy")}
    samples = [
        sample(record) | {"kind": record.kind, "waited": run.waited(record), "prompt_tokens": record.prompt_tokens}
        for record in run.inside
    ]
    return own | {"window": asdict(run.window), "client": asdict(run.health), "samples": samples}


@dataclass(slots=True)
class _Terminal:
    """Shows progress: a line for each part, and on a terminal a bar too."""

    out: Console
    started: float = field(default_factory=time.monotonic)
    about: str = ""
    part_started: float = 0.0
    part_seconds: float = 1.0
    doing: str = ""
    client: LoadClient | None = None

    def begin(self, about: str, *, seconds: float) -> None:
        """See `Stage`."""
        self.about, self.part_seconds, self.part_started = about, seconds, time.monotonic()
        self.doing, self.client = "starting", None
        self.out.print(f"[dim]{time.monotonic() - self.started:4.0f} s[/] [bold]{about}[/]")

    def load(self, about: str, client: LoadClient) -> None:
        """See `Stage`."""
        self.doing, self.client = about, client

    def say(self, text: str) -> None:
        """See `Stage`."""
        self.out.print(f"       {text}")

    def render(self) -> RenderableType:
        """The bar, redrawn as time passes."""
        elapsed, line = time.monotonic() - self.part_started, Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self.part_seconds, completed=min(elapsed, self.part_seconds), width=24)
        counts = ""
        if self.client is not None:
            seen = self.client.progress
            counts = f"{seen.ended} ended, {seen.sent - seen.ended} in flight, {seen.failed} failed"
        line.add_row(f"{time.monotonic() - self.started:4.0f} s", bar, f"{self.doing}; {counts}".rstrip("; "))
        return line


@contextmanager
def _shown(out: Console) -> Iterator[_Terminal]:
    terminal = _Terminal(out)
    if not out.is_terminal:
        yield terminal
        return
    with Live(get_renderable=terminal.render, console=out, refresh_per_second=4, transient=True):
        yield terminal
