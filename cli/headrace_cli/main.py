"""Root of the `headrace` command line: a table of where each command is. The packages own their commands."""

from __future__ import annotations

import typer

from headrace_cli.lazy import LazyCommand, lazy_group

COMMANDS = {
    "serve": LazyCommand("headrace_engine.cli:serve", "engine", "Serve a model over the OpenAI API."),
    "model": LazyCommand("headrace_engine.cli:model_app", "engine", "Get a demo model."),
    "bench": LazyCommand("headrace_cli.bench:app", "engine", "Measure an engine, or any OpenAI-compatible server."),
    "sim": LazyCommand("headrace_cli.sim:app", "engine", "Run the engine's own scheduler without the engine."),
    "tune": LazyCommand("headrace_tuner.cli:tune", "tuner", "Tune a running engine by hand."),
    "status": LazyCommand(
        "headrace_operator.cli:status", "operator", "Show the services and tuning runs of a cluster."
    ),
    "explain": LazyCommand(
        "headrace_cli.explain:app", "operator", "Show why a knob has its value, or what a request waited for."
    ),
    "local": LazyCommand(
        "headrace_local.commands:app", "local", "Manage the embedded cluster: up, down, status, demo."
    ),
}

app = typer.Typer(cls=lazy_group(COMMANDS), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Headrace: LLM serving on Kubernetes that tunes itself, and tells you what it did."""


def main() -> None:
    """Entry point of the console script `headrace`."""
    app()
