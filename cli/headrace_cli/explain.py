"""`headrace explain service` and `request`; `headrace explain NAME` is short for `headrace explain service NAME`."""

from __future__ import annotations

import typer

from headrace_cli.lazy import LazyCommand, lazy_group

EXPLAINS = {
    "service": LazyCommand(
        "headrace_operator.cli:explain", "operator", "Show why each knob of a service has its value."
    ),
    "request": LazyCommand(
        "headrace_cli.explain_request:explain_request", "engine", "Show what a request waited for and how it ended."
    ),
}

app = typer.Typer(cls=lazy_group(EXPLAINS, default="service"), no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Explain the knobs of a service or the history of a request. `headrace explain NAME` explains a service."""
