"""`headrace explain`: why a service has its knobs, what became of a request. `headrace explain NAME` is a service."""

from __future__ import annotations

import typer

from headrace_cli.lazy import LazyCommand, lazy_group

EXPLAINS = {
    "service": LazyCommand("headrace_operator.cli:explain", "operator", "Why each knob of a service has its value."),
    "request": LazyCommand("headrace_cli.explain_request:explain_request", "engine", "What became of one request."),
}

app = typer.Typer(cls=lazy_group(EXPLAINS, default="service"), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Why things are as they are. `headrace explain NAME` explains the knobs of a service."""
