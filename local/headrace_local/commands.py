"""`headrace local ...`: the embedded cluster from the command line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace_core.errors import HeadraceError
from headrace_local import binaries as programs
from headrace_local import cluster
from headrace_local.errors import LocalError
from headrace_local.layout import Slot, default_slot
from headrace_local.progress import RichSteps

app = typer.Typer(no_args_is_help=True, help="The embedded cluster: real Kubernetes on this machine's loopback.")

SlotOption = Annotated[
    int, typer.Option("--slot", help="Number of the embedded cluster; each has its own ports and addresses.")
]
GpusOption = Annotated[int, typer.Option("--gpus", min=0, max=64, help="Number of pretend GPUs that the node offers.")]
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@app.command()
def up(slot: SlotOption = 0, gpus: GpusOption = cluster.DEFAULT_GPUS) -> None:
    """Start the cluster. The first time its programs are built, which takes minutes."""
    with _errors_shown():
        where = default_slot(slot)
        if not cluster.up(where, gpus=gpus, steps=RichSteps(err)):
            err.print(f"Slot {slot} is up already, with {cluster.status(where).gpus} pretend GPUs.")
        _print_how_to_use(where)


@app.command()
def demo(
    slot: SlotOption = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running at the end.")] = False,
) -> None:
    """Run the whole loop on a cluster of its own, checking each step (about ten minutes on two cores)."""
    from headrace_local.demo.run import run_demo  # noqa: PLC0415 - only this command needs the demo

    with _errors_shown():
        run_demo(default_slot(slot), keep=keep, console=out)


@app.command()
def down(slot: SlotOption = 0) -> None:
    """Stop the cluster and remove everything except its logs. Does nothing if there is none."""
    with _errors_shown():
        where = default_slot(slot)
        with RichSteps(err).step(f"Taking down slot {slot}") as step:
            report = cluster.down(where)
            step.detail(f"{len(report.stopped)} processes stopped")
        for pid, command in report.killed:
            err.print(f"  [dim]left over and killed: {pid} {escape(command[:100])}[/]")
        if not (report.stopped or report.killed or report.unmounted):
            err.print("  [dim]there was nothing to take down[/]")


@app.command()
def status(slot: SlotOption = 0) -> None:
    """Show the cluster's processes. Exit code 0: up, 3: there is no cluster, 4: broken."""
    with _errors_shown():
        where = default_slot(slot)
        found = cluster.status(where)
        if found.processes:
            out.print(_process_table(found))
        out.print(_state_line(where, found), soft_wrap=True)
    codes = {cluster.SlotState.UP: 0, cluster.SlotState.ABSENT: 3, cluster.SlotState.BROKEN: 4}
    raise typer.Exit(codes[found.state])


@app.command()
def binaries() -> None:
    """Show the cluster's programs and where each comes from; build missing ones first."""
    with _errors_shown():
        cache = default_slot().cache_dir
        programs.ensure(cache, os.environ, RichSteps(err))
        table = Table("program", "version", "source", "path", box=None, header_style="dim")
        found = programs.find_all(cache, os.environ)
        for binary in found:
            table.add_row(binary.program.name, binary.version, binary.source.value, str(binary.path))
        out.print(table)
        for line in (line for binary in found for line in binary.passed_over):
            err.print(f"[dim]not used: {escape(line)}[/]")


@app.command(context_settings=_PASS_ON)
def kubectl(context: typer.Context, slot: SlotOption = 0) -> None:
    """Run kubectl against the cluster: `headrace local kubectl --slot 1 -- get pods -A`."""
    with _errors_shown():
        where = default_slot(slot)
        if not where.kubeconfig.is_file():
            raise _not_up(where)
        found = programs.ensure(where.cache_dir, os.environ, RichSteps(err), ["kubectl"])
    environment = {**os.environ, "KUBECONFIG": str(where.kubeconfig)}
    os.execve(found["kubectl"], ["kubectl", *context.args], environment)  # noqa: S606 - kubectl takes our place


def show_error(error: LocalError) -> None:
    """Print one panel: what failed, why, the other program's output, what to do."""
    parts: list[Text | Panel] = [Text(error.what, style="bold")]
    if error.why:
        parts.append(Text(error.why))
    if error.detail:
        parts.append(Panel(Text(error.detail, style="dim"), border_style="dim"))
    if error.todo:
        parts.append(Text.assemble(("What to do: ", "bold"), error.todo))
    err.print(Panel(Group(*parts), border_style="red", title="headrace local", title_align="left"))


@contextlib.contextmanager
def _errors_shown() -> Iterator[None]:
    """Show an error as a panel and exit with 1. Exit codes for Ctrl-C: 130, for a slot that does not exist: 2."""
    try:
        yield
    except LocalError as error:
        show_error(error)
        raise typer.Exit(1) from None
    except HeadraceError as error:
        show_error(LocalError(str(error)))
        raise typer.Exit(1) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _print_how_to_use(slot: Slot) -> None:
    out.print(f"export KUBECONFIG={slot.kubeconfig}", soft_wrap=True)
    option = f" --slot {slot.number}" if slot.number else ""
    found = programs.find_all(slot.cache_dir, os.environ, ["kubectl"])[0]
    lines = {
        "kubectl": f"{found.path}   (or: headrace local kubectl{option} -- get pods -A)",
        "Prometheus": slot.prometheus_url,
        "logs": str(slot.logs_dir),
        "stop it": f"headrace local down{option}",
    }
    for name, value in lines.items():
        err.print(f"[dim]{name:>10}[/]  {escape(value)}", soft_wrap=True)


def _process_table(found: cluster.Status) -> Table:
    table = Table("process", "pid", "running for", box=None, header_style="dim")
    for process in found.processes:
        running = "[red]ended[/]" if process.seconds is None else _duration(process.seconds)
        table.add_row(process.name, str(process.pid), running)
    return table


def _state_line(slot: Slot, found: cluster.Status) -> str:
    option = f" --slot {slot.number}" if slot.number else ""
    match found.state:
        case cluster.SlotState.UP:
            where = f"API server {slot.apiserver_url}, logs in {slot.logs_dir}"
            return f"[green]up[/], {found.gpus} pretend GPUs, {where}\nexport KUBECONFIG={slot.kubeconfig}"
        case cluster.SlotState.ABSENT:
            return f"There is no cluster in slot {slot.number}. Start one: headrace local up{option}"
        case cluster.SlotState.BROKEN:
            return (
                f"[red]broken[/], logs in {slot.logs_dir}\n"
                f"Start it again: headrace local up{option}   or remove it: headrace local down{option}"
            )


def _not_up(slot: Slot) -> LocalError:
    return LocalError(
        f"There is no cluster in slot {slot.number}.",
        why=f"{slot.kubeconfig} does not exist.",
        todo=f"Start it: headrace local up --slot {slot.number}",
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
