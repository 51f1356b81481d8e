"""Helpers that the command lines share: the console, one-line errors, results as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from headrace_core.errors import HeadraceError

T = TypeVar("T")
EXIT_WRONG, EXIT_INTERRUPTED = 2, 130
console = Console(stderr=True, highlight=False)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A context in which a `HeadraceError` is one line and exit code 2."""
    try:
        yield
    except HeadraceError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(EXIT_WRONG) from error


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end; SIGTERM and Ctrl-C cancel it, so that it can clean up."""
    with plain_errors():
        try:
            return asyncio.run(_terminable(work))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("stopped")
            raise typer.Exit(EXIT_INTERRUPTED) from None


async def _terminable(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    try:
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    except (RuntimeError, NotImplementedError, ValueError):
        pass  # not the main thread, which alone gets signals
    return await work


def write_json(where: str, result: dict[str, Any]) -> None:
    """Write `result` to the file `where`, or to standard output for `-`. Raises `HeadraceError`."""
    text = json.dumps(result, indent=1, allow_nan=False)
    if where == "-":
        typer.echo(text)
        return
    try:
        Path(where).write_text(text + "\n")
    except OSError as error:
        raise HeadraceError(f"--json {where}: cannot be written: {error.strerror}") from error
