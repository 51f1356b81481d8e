"""Progress of the demo: each step's title, its facts and checks as they come, and its time when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from headrace_local.errors import LocalError
from headrace_local.progress import elapsed_text


@dataclass(slots=True)
class DemoStage:
    """One running step. `say` adds a fact, `check` ends the demo unless a condition holds."""

    title: str
    console: Console

    def say(self, fact: str) -> None:
        """Print one fact below the step's title."""
        self.console.print(f"    {fact}", highlight=False)

    def check(self, holds: bool, what: str, why: str, todo: str = "") -> None:
        """Print `what` as passed if `holds`, else end the demo. Raises `LocalError`."""
        if not holds:
            raise LocalError(f"This check failed: {what}.", why=why, todo=todo)
        self.console.print(f"    [green]✓[/green] {escape(what)}", highlight=False)


@dataclass(slots=True)
class Stages:
    """The steps of one demo, numbered and timed."""

    total: int
    console: Console = field(default_factory=Console)
    times: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str) -> Iterator[DemoStage]:
        """Run one step, and keep its time for the summary."""
        number = len(self.times) + 1
        self.console.print(f"\n[bold cyan][{number}/{self.total}][/bold cyan] [bold]{escape(title)}[/bold]")
        started = time.monotonic()
        yield DemoStage(title, self.console)
        seconds = time.monotonic() - started
        self.times.append((title, seconds))
        self.console.print(f"    [dim]took {elapsed_text(seconds)}[/dim]", highlight=False)


def evidence_folder() -> Path:
    """Where the demo leaves its manifests, figures and logs: build/demo under the working folder."""
    folder = Path("build/demo")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
