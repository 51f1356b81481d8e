"""Commands whose options are the fields of a dataclass, which gives flags, help and the value that is passed on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

import typer

from headrace_api.quantity import parse_duration

T = TypeVar("T")


def with_options(options: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes its arguments and then `options` a flag for each field of that dataclass.

    Fields are `Annotated[type, option(...)]` with a default, so that a test can make one without a command line.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [item for name, item in signature.parameters.items() if name != "options"]
        parameters = [*own, *(_parameter(options, name) for name in _names(options))]

        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in _names(options)}
            command(**values, options=options(**given))

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    return wrap


def seconds(value: str | float) -> float:
    """A duration in seconds from `20`, `1.5`, `500ms`, `1m30s`. Raises `typer.BadParameter`."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if value.strip()[-1:].isdigit() else parse_duration(value.strip())
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not a duration: write e.g. 500ms, 20 or 20s, 1m30s") from error


def option(text: str, *flags: str, panel: str, **more: Any) -> Any:
    """One option: its help, flags if they differ from the field's name, and its panel in the help."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **more)


def duration(text: str, *flags: str, panel: str) -> Any:
    """An option in seconds that also takes units."""
    return option(text, *flags, panel=panel, parser=seconds, metavar="DURATION")


def _names(options: type[Any]) -> list[str]:
    return [item.name for item in fields(options)]


def _parameter(options: type[Any], name: str) -> inspect.Parameter:
    item = next(item for item in fields(options) if item.name == name)
    annotation: Any = get_type_hints(options, include_extras=True)[name]
    if item.default is MISSING:
        raise TypeError(f"{options.__name__}.{name} needs a default")
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=item.default, annotation=annotation)
