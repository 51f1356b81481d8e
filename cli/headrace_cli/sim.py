"""`headrace sim`: the engine's own scheduler without the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headrace_core.trace.replay import ReplayProblem, ReplayProblemKind, ReplayReport
from headrace_core.trace.replay import replay as replay_lines

CONTEXT = 60  # characters shown on each side of a difference

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Run the engine's own scheduler without the engine."""


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A recorded schedule.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Repeat a recorded scheduler's calls and compare each answer byte by byte. Exits 1 if one differs."""
    report = replay_lines(_lines(file))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        _tell(report)
    raise typer.Exit(0 if report.ok else 1)


def _lines(file: Path) -> Iterator[str]:
    """The file's lines, with a progress bar if standard error is a terminal."""
    columns = (TextColumn("Replaying"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    console = Console(stderr=True)
    # Invalid UTF-8 must reach the replay, which reports its line.
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        file.open(encoding="utf-8", errors="replace", newline="\n") as stream,
    ):
        task = progress.add_task("replay", total=file.stat().st_size)
        for line in stream:
            yield line
            progress.advance(task, len(line))


def _tell(report: ReplayReport) -> None:
    console = Console(soft_wrap=True)
    done = f"{report.calls} calls, {report.steps} steps, {report.outcomes} outcomes"
    if report.problem is None:
        console.print(f"[green]The same[/green]: {done}.")
    else:
        _tell_problem(console, report.problem, done)
    if report.truncated_line is not None:
        console.print(f"Line {report.truncated_line} is cut short, as by a crash; all before it was replayed.")


def _tell_problem(console: Console, problem: ReplayProblem, done: str) -> None:
    console.print(f"[red]Line {problem.line}[/red]: {escape(problem.message)}. Replayed until then: {done}.")
    if problem.kind is ReplayProblemKind.DIFFERENT:
        at = _first_difference(problem.recorded, problem.replayed)
        console.print(f"At character {at + 1}:")
        console.print(f"  recorded  {escape(_around(problem.recorded, at))}", highlight=False)
        console.print(f"  replayed  {escape(_around(problem.replayed, at))}", highlight=False)
        console.print("Both in full: --json.")
    elif problem.kind is ReplayProblemKind.CORRUPT:
        console.print(f"  {escape(_around(problem.recorded, 0))}", highlight=False)


def _first_difference(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _around(text: str, at: int) -> str:
    start, end = max(0, at - CONTEXT), at + CONTEXT
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
