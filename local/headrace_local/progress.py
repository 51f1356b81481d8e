"""Steps that a person watches: a spinner with the time while one runs, one line with its time when it has ended."""

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
        """Say how far it is; replaces what was said before."""


class Steps(Protocol):
    """Where steps are shown."""

    def step(self, title: str) -> AbstractContextManager[ProgressStep]:
        """Show a step while the `with` block runs; it failed if the block raises."""

    def note(self, text: str) -> None:
        """Say one thing that is not a step."""


class QuietSteps:
    """Shows nothing: for tests and for use from other programs."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Run the block."""
        yield _Silent()

    def note(self, text: str) -> None:
        """Say nothing."""


class RichSteps:
    """Shows steps on a console; without a terminal only the line at a step's end."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Spinner, title, detail and elapsed time while the block runs; then a line that stays."""
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
        """Say nothing."""


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
