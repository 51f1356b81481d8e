"""`headrace explain request`: the history of one request, from the engine that served it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from headrace_api.names import ADMIN_TOKEN_ENV
from headrace_cli.service_engines import Told, Where, ask_service
from headrace_client.engine import EngineAdmin
from headrace_client.errors import EngineCallError, KubeError
from headrace_core.scheduler.wait_cause import WaitCause
from headrace_core.trace.explain import PHRASES

LOCAL = "http://127.0.0.1:8001"


def explain_request(
    request: Annotated[str, typer.Argument(help="The engine's id, the id in the answer, or the x-request-id.")],
    *,
    service: Annotated[str | None, typer.Option(help="InferenceService whose pods to ask.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the service. Default: the context's.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    admin_url: Annotated[str, typer.Option(help="Without --service: URL of the engine's admin port.")] = LOCAL,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the admin token. Default: ${ADMIN_TOKEN_ENV}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Show what one request waited for, how it was computed, and how it ended."""
    try:
        if service is not None:
            told = asyncio.run(ask_service(Where(service=service, namespace=namespace, context=context), request))
        else:
            token = os.environ.get(ADMIN_TOKEN_ENV, "") if token_file is None else token_file.read_text().strip()
            told = asyncio.run(_ask(admin_url, token, request))
    except (EngineCallError, KubeError, OSError) as error:
        Console(stderr=True).print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        Console().print(story(told))


async def _ask(url: str, token: str, request: str) -> Told:
    async with EngineAdmin(url, token) as admin:
        return await admin.explain(request)


def story(told: Told) -> RenderableType:
    """One line per call, then for each generation sentences and a table of what it waited for."""
    parts: list[RenderableType] = [Text(line) for line in map(_call, told["calls"])]
    for generation in told["generations"]:
        parts += [Text(""), *(Text(line) for line in generation.get("sentences", ()))]
        if rows := list(_rows(generation)):
            parts.append(_table(rows))
    if not told["generations"]:
        parts.append(Text("The scheduler no longer has its history: it keeps the last 1024 requests that ended."))
    return Group(*parts)


def _call(call: Told) -> str:
    how = "is being answered" if call["status"] is None else f"was answered {call['status']} in {call['seconds']:.3f} s"
    who = f" by key {call['key']}" if call["key"] else ""
    tokens = f"{call['prompt_tokens']} prompt tokens, {call['output_tokens']} generated"
    return (
        f"{call['method']} {call['path']} (x-request-id {call['request_id']}){who} {how}: {tokens}, "
        f"config generation {call['generation']}."
    )


def _rows(generation: Told) -> Iterator[tuple[str, str, Told]]:
    for when, name in (("before its first chunk", "waits"), ("while others were ahead", "held_up_by"),
                       ("after its first chunk", "stalls")):  # fmt: skip
        for wait in sorted(generation[name], key=lambda item: -item["seconds"]):
            yield when, _phrase(wait["cause"]), wait


def _phrase(cause: str) -> str:
    known = [PHRASES[item] for item in WaitCause if item == cause]
    return known[0] if known else cause


def _table(rows: Sequence[tuple[str, str, Told]]) -> Table:
    table = Table("Waited", "For", Column("Steps", justify="right"), Column("Time", justify="right"), box=None)
    for when, phrase, wait in rows:
        seconds = wait["seconds"]
        shown = f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
        table.add_row(when, phrase.removeprefix("for "), str(wait["steps"]), shown)
    return table
