"""A click group whose commands are a table of import targets.

A command's module is imported when that command runs, so `headrace status` starts without torch, and an extra has to be
installed only for the commands that need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command: its function or app as `module:attribute`, the extra that installs it, its help line."""

    target: str
    extra: str
    help: str


def load(name: str, entry: LazyCommand) -> Any:
    """Import the command `name`. If a library is missing, says which extra to install and exits with 2."""
    module_name, attribute = entry.target.split(":")
    try:
        loaded = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("headrace_"):
            raise
        Console(stderr=True).print(
            f"[red]headrace {name} needs the module {error.name}, which is not installed.[/red]\n"
            f"Run: pip install 'headrace\\[{entry.extra}]'"
        )
        raise typer.Exit(2) from error
    return _as_command(name, loaded)


def _as_command(name: str, loaded: Any) -> Any:
    if not isinstance(loaded, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command()(loaded)
        loaded = single
    command: Any = get_command(loaded)
    command.name = name
    return command


def lazy_group(table: Mapping[str, LazyCommand], *, default: str | None = None) -> type[TyperGroup]:
    """A group class over `table`: listing imports nothing, resolving imports one command.

    Arguments that do not begin with a command's name go to the command `default`.
    """

    class LazyGroup(TyperGroup):
        entries: ClassVar[Mapping[str, LazyCommand]] = table

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = not args or args[0] in self.entries or args[0] in ctx.help_option_names
            return super().parse_args(ctx, args if named or default is None else [default, *args])

        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *self.entries]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            entry = self.entries.get(cmd_name)
            return super().get_command(ctx, cmd_name) if entry is None else TyperCommand(cmd_name, help=entry.help)

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            entry = self.entries.get(args[0])
            if entry is None:
                return super().resolve_command(ctx, args)
            return args[0], load(args[0], entry), args[1:]

    return LazyGroup
