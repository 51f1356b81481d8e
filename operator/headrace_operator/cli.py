"""`headrace status` and `headrace explain`: what a cluster runs, and why it is configured as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from headrace_api import names
from headrace_api.base import InvalidResource
from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_client.resources import CONFIG_MAPS, INFERENCE_SERVICES, TUNING_RUNS
from headrace_core.errors import HeadraceError
from headrace_core.knobs.resolve import ConfigError
from headrace_operator.rollout.revisions import read_active_revision
from headrace_operator.service.effective_config import KnobSource, effective_config
from headrace_operator.service.explain import KnobExplanation, explain_config

T = TypeVar("T")
Body = Mapping[str, Any]


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


Context = Annotated[str | None, typer.Option("--context", help="Kubeconfig context.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Every namespace.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="table, or json for programs.")]


def status(
    context: Context = None, namespace: Namespace = None, everywhere: Everywhere = False, output: Format = Output.TABLE
) -> None:
    """List the services and tuning runs of a cluster."""
    services, runs = _answer(_lists(context, namespace, everywhere))
    if output is Output.JSON:
        typer.echo(json.dumps({"services": services, "tuningRuns": runs}, indent=2))
        return
    console = Console()
    if not services and not runs:
        console.print("No InferenceServices or TuningRuns here. Use -A to look in all namespaces.")
        return
    if services:
        console.print(services_table(services))
    if runs:
        console.print(runs_table(runs))


def explain(
    name: Annotated[str, typer.Argument(help="InferenceService.")],
    context: Context = None,
    namespace: Namespace = None,
    output: Format = Output.TABLE,
) -> None:
    """Why each knob of a service has the value it has: who set it, when, and what changing it takes."""
    lines = _answer(_explain(name, context, namespace))
    if output is Output.JSON:
        typer.echo(json.dumps([line.to_json() for line in lines], indent=2))
        return
    Console().print(explain_table(name, lines))


def services_table(services: list[Body]) -> Table:
    """One row per service, with each Ready message and URL in the caption."""
    table = Table(*_fixed("Namespace", "InferenceService", "Ready", "Reason", "Pods", "Tuned by"), box=None)
    notes: list[str] = []
    for body in services:
        found = body.get("status") or {}
        ready = _condition(body, "Ready")
        pods = f"{found.get('readyReplicas', 0)}/{(body.get('spec') or {}).get('replicas', 1)}"
        tuned = (found.get("tuned") or {}).get("tuningRun", "")
        url = (found.get("endpoint") or {}).get("url", "")
        state = ready.get("status", "Unknown")
        table.add_row(*_name(body), _coloured(state), ready.get("reason", ""), pods, tuned)
        notes += [f"{_name(body)[1]}: {ready['message']}"] if ready.get("message") else []
        notes += [f"{_name(body)[1]}: {url}/v1"] if url else []
    table.caption, table.caption_justify = escape("\n".join(notes)), "left"
    return table


def runs_table(runs: list[Body]) -> Table:
    """One row per run, with each status message in the caption."""
    table = Table(*_fixed("Namespace", "TuningRun", "Phase", "Trials", "Verdict", "Applied"), box=None)
    notes: list[str] = []
    for body in runs:
        found = body.get("status") or {}
        table.add_row(
            *_name(body),
            found.get("phase", "Pending"),
            (found.get("trials") or {}).get("progress", ""),
            found.get("verdict", ""),
            _condition(body, "Applied").get("reason", ""),
        )
        notes += [f"{_name(body)[1]}: {found['message']}"] if found.get("message") else []
    table.caption, table.caption_justify = escape("\n".join(notes)), "left"
    return table


def explain_table(name: str, lines: list[KnobExplanation]) -> Table:
    """One row per knob; knobs with their default value are dimmed."""
    title = f"InferenceService {name}"
    table = Table(*_fixed("Knob", "Value", "Class"), "Set by", "Since", title=title, box=None)
    for line in lines:
        shown = "computed" if line.value is None else str(line.value).lower()
        by = "default" if line.source == KnobSource.DEFAULT else f"{line.source}: {line.by}"
        style = "dim" if line.source == KnobSource.DEFAULT else ""
        table.add_row(line.knob, shown, line.klass, escape(by), line.since, style=style)
    return table


async def _lists(context: str | None, namespace: str | None, everywhere: bool) -> tuple[list[Body], list[Body]]:
    async with Kube.auto(context) as kube:
        where = None if everywhere else namespace or kube.connection.namespace
        services = await kube.list(INFERENCE_SERVICES, where)
        runs = await kube.list(TUNING_RUNS, where)
    return [_plain(body) for body in services], [_plain(body) for body in runs]


async def _explain(name: str, context: str | None, namespace: str | None) -> list[KnobExplanation]:
    async with Kube.auto(context) as kube:
        where = namespace or kube.connection.namespace
        body = await kube.get(INFERENCE_SERVICES, name, where)
        if body is None:
            raise KubeError(f"InferenceService {where}/{name} does not exist; headrace status -A lists all")
        active = read_active_revision(await kube.get(CONFIG_MAPS, names.tuned_config_map(name), where))
    service = InferenceService.read(body)
    fields = body["metadata"].get("managedFields") or ()
    return explain_config(service, effective_config(service, active), active=active, managed_fields=fields)


def _answer(question: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(question)
    except (HeadraceError, InvalidResource, ConfigError, ValueError) as error:
        Console(stderr=True).print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(1) from None


def _plain(body: Body) -> Body:
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return {**body, "metadata": metadata}


def _fixed(*titles: str) -> list[Column]:
    """Columns that are never cut: on a narrow terminal the others wrap."""
    return [Column(title, no_wrap=True) for title in titles]


def _condition(body: Body, type_: str) -> Body:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == type_), {})


def _name(body: Body) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _coloured(state: str) -> str:
    colour = {"True": "green", "False": "red"}.get(state, "yellow")
    return f"[{colour}]{state}[/{colour}]"
