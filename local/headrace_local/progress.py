"""Progress display: a spinner with the time while a step runs, one line with its duration when it has ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ProgressStep(Protocol):
    """A step under way."""

    def detail(self, text: str) -> None:
        """Show how far it is, in place of the text shown before."""


class Steps(Protocol):
    """A display of steps."""

    def step(self, title: str) -> AbstractContextManager[ProgressStep]:
        """Show a step while the `with` block runs; as failed if the block raises."""

    def note(self, text: str) -> None:
        """Show one line that is not a step."""


class QuietSteps:
    """Shows nothing: for tests and for use from other programs."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Run the block."""
        yield _Silent()

    def note(self, text: str) -> None:
        """Show nothing."""


class RichSteps:
    """Shows steps on a console. Without a terminal it prints only the line at the end of each step."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show spinner, title, detail and elapsed time while the block runs, then a line that stays."""
        started = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        progress = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        shown = _Shown(progress, progress.add_task(escape(title), total=None, detail=""))
        try:
            with progress:
                yield shown
        except BaseException:
            self._console.print(f"[red]✗[/] {escape(title)} [dim]{elapsed_text(time.monotonic() - started)}[/]")
            raise
        self._console.print(
            f"[green]✓[/] {escape(title)} [dim]{escape(shown.last)} {elapsed_text(time.monotonic() - started)}[/]"
        )

    def note(self, text: str) -> None:
        """One dim line."""
        self._console.print(f"[dim]{escape(text)}[/]")


class _Silent:
    def detail(self, text: str) -> None:
        """Show nothing."""


class _Shown:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self.last = ""

    def detail(self, text: str) -> None:
        """Show the text beside the title."""
        self.last = text
        self._progress.update(self._task, detail=escape(text))


def elapsed_text(seconds: float) -> str:
    """`7.3 s`, `2 min 05 s`."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
