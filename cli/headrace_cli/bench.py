"""`headrace bench`: one group over benchmarks that live in different parts."""

from __future__ import annotations

import typer

from headrace_cli.lazy import Entry, lazy_group

BENCHES = {
    "engine": Entry("headrace_engine.cli:bench_engine", "engine", "Step times of a model on this machine."),
    "serve": Entry("headrace_tuner.commands:bench_serve", "tuner", "Open- or closed-loop load on a server."),
}

app = typer.Typer(cls=lazy_group(BENCHES), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Measure an engine, or any OpenAI server."""
