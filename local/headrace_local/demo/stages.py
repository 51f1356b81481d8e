"""Progress of the demo: one line a step while it runs, its facts and its time when it ends, its check when it fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape


class DemoError(Exception):
    """A step's check did not hold: `what` failed, `why`, and `todo` says where to look."""

    def __init__(self, what: str, why: str, todo: str = "") -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why, self.todo = what, why, todo


@dataclass(slots=True)
class Stage:
    """One running step. `say` adds a fact, `check` holds it to its promise."""

    title: str
    console: Console
    facts: list[str] = field(default_factory=list)
    status: object = None

    def say(self, fact: str) -> None:
        """Print one fact below the step's title."""
        self.facts.append(fact)
        self.console.print(f"    {fact}", highlight=False)

    def check(self, holds: bool, what: str, why: str, todo: str = "") -> None:
        """Go on if `holds`, else end the demo. Raises `DemoError`."""
        if not holds:
            raise DemoError(what, why, todo)
        self.console.print(f"    [green]✓[/green] {escape(what)}", highlight=False)


@dataclass(slots=True)
class Stages:
    """The steps of one demo, numbered and timed."""

    total: int
    console: Console = field(default_factory=Console)
    times: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """Run one step; its time is kept for the summary."""
        number = len(self.times) + 1
        self.console.print(f"\n[bold cyan][{number}/{self.total}][/bold cyan] [bold]{escape(title)}[/bold]")
        started = time.monotonic()
        yield Stage(title, self.console)
        seconds = time.monotonic() - started
        self.times.append((title, seconds))
        self.console.print(f"    [dim]took {clock(seconds)}[/dim]", highlight=False)


def clock(seconds: float) -> str:
    """`7.3 s`, `2 min 05 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def evidence_folder() -> Path:
    """Where the demo leaves its manifests, figures and logs: build/demo under the working folder."""
    folder = Path("build/demo")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
