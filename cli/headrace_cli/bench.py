"""`headrace bench`: one group for the benchmarks of the engine and of headrace_bench."""

from __future__ import annotations

import typer

from headrace_cli.lazy import LazyCommand, lazy_group

BENCHES = {
    "engine": LazyCommand("headrace_engine.cli:bench_engine", "engine", "Step times of a model on this machine."),
    "quality": LazyCommand(
        "headrace_bench.quality.command:bench_quality", "bench", "Whether two configs give the same answers."
    ),
    "serve": LazyCommand("headrace_bench.serve.command:bench_serve", "bench", "Load on any OpenAI server."),
    "compare": LazyCommand("headrace_bench.serve.command:bench_compare", "bench", "Two results of serve side by side."),
    "modes": LazyCommand(
        "headrace_bench.modes.command:bench_modes", "bench", "Static, continuous, chunked, side by side."
    ),
}

app = typer.Typer(cls=lazy_group(BENCHES), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Measure an engine, or any OpenAI server."""
