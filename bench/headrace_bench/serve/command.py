"""`headrace bench serve URL` and `headrace bench compare A B`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace_bench.command_options import with_options
from headrace_bench.serve.compare import compare, comparison_table, read_result
from headrace_bench.serve.options import ServeOptions
from headrace_bench.serve.run import Ran, run_serve, write_records
from headrace_bench.serve.show import TerminalDisplay, result_table
from headrace_client.terminal import EXIT_INTERRUPTED, console, plain_errors, run_async, write_json

EXIT_NOTHING, EXIT_CLIENT = 1, 3


@with_options(ServeOptions)
def bench_serve(
    url: Annotated[str, typer.Argument(help="Server, such as http://127.0.0.1:8000; any server with OpenAI's API.")],
    *,
    options: ServeOptions,
) -> None:
    """Load a server and show latencies, each counted from the planned arrival.

    Exit codes: 1 nothing was answered, 2 the run is not possible, 3 (--strict) the client was the limit.
    """
    ran = run_async(run_serve(url, options, TerminalDisplay(console)))
    console.print(result_table(ran))
    with plain_errors():
        _write(ran)
    if ran.result.completed == 0:
        raise typer.Exit(EXIT_NOTHING)
    if ran.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if options.strict and ran.limits:
        raise typer.Exit(EXIT_CLIENT)


def bench_compare(
    before: Annotated[Path, typer.Argument(help="Result of bench serve --json.")],
    after: Annotated[Path, typer.Argument(help="Another result, to compare with it.")],
    *,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the comparison to this file as JSON; - for stdout.")
    ] = None,
) -> None:
    """Ratios of two results of `bench serve`, with intervals from resampled stretches of requests."""
    with plain_errors():
        compared = compare(read_result(before), read_result(after))
        console.print(comparison_table(compared, names=(before.name, after.name)))
        if json_file is not None:
            write_json(json_file, compared.to_json())


def _write(ran: Ran) -> None:
    if ran.options.json is not None:
        write_json(ran.options.json, ran.to_json())
    if ran.options.records is not None:
        write_records(ran.options.records, ran.records)
