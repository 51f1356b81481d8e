"""`python -m headrace_engine observe`: the process that `headrace bench quality` runs.

It reads a request in JSON from standard input and writes observations in JSON as the last line of standard output. JSON
lines on standard error report progress or, with exit code 2, an error; other lines there come from libraries.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

import typer

from headrace_core.observations import ObservationRequest
from headrace_engine.cli import hush_progress
from headrace_engine.errors import EngineError


def observe() -> None:
    """Answer one request of `headrace bench quality`."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from headrace_engine.quality.observe import observe_all  # noqa: PLC0415

    request = ObservationRequest.from_json(json.load(sys.stdin))
    try:
        with redirect_stdout(sys.stderr):
            hush_progress()
            answer = observe_all(request, ProgressLines())
    except EngineError as error:
        _say(error=str(error))
        raise typer.Exit(2) from error
    typer.echo(json.dumps(answer.to_json()))


class ProgressLines:
    """Reports progress as lines of JSON on standard error."""

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """Write one line now, and one whenever the returned function is called."""
        _say(begin=what, total=total)
        return lambda: _say(done=1)


def _say(**fields: object) -> None:
    print(json.dumps({"observe": fields}), file=sys.stderr, flush=True)  # noqa: T201
