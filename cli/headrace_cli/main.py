"""Root of the `headrace` command line. Each part of the project owns its commands; here is only where they live."""

from __future__ import annotations

import typer

from headrace_cli.lazy import LazyCommand, lazy_group

COMMANDS = {
    "serve": LazyCommand("headrace_engine.cli:serve", "engine", "Serve a model over the OpenAI API."),
    "model": LazyCommand("headrace_engine.cli:model_app", "engine", "Get the demo model."),
    "bench": LazyCommand("headrace_cli.bench:app", "engine", "Measure an engine, or any OpenAI server."),
    "sim": LazyCommand("headrace_cli.sim:app", "engine", "The engine's own scheduler without the engine."),
    "tune": LazyCommand("headrace_tuner.cli:tune", "tuner", "Tune a running engine by hand."),
    "status": LazyCommand("headrace_operator.cli:status", "operator", "Services and tuning runs of a cluster."),
    "explain": LazyCommand(
        "headrace_cli.explain:app", "operator", "Why a knob has its value; what became of a request."
    ),
    "local": LazyCommand("headrace_local.commands:app", "local", "The embedded cluster: up, down, status, demo."),
}

app = typer.Typer(cls=lazy_group(COMMANDS), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Headrace: LLM serving on Kubernetes that tunes itself, and says what it did."""


def main() -> None:
    """Console entry point."""
    app()
