"""`headrace bench serve` and `headrace tune`: the load client and the study by hand."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from headrace_api.names import ADMIN_TOKEN_ENV
from headrace_tuner.bench import Bench, run_bench
from headrace_tuner.errors import TunerError
from headrace_tuner.report import load_table
from headrace_tuner.workload import Workload

T = TypeVar("T")
console = Console(stderr=True, highlight=False)


def bench_serve(
    url: Annotated[str, typer.Argument(help="Server, such as http://127.0.0.1:8000; any OpenAI completions API.")],
    *,
    rate: Annotated[float, typer.Option(help="Requests per second, planned ahead (open loop).")] = 1.0,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals.")] = 20.0,
    short_prompt_tokens: Annotated[int, typer.Option(help="Mean length of short prompts.")] = 64,
    long_prompt_tokens: Annotated[int, typer.Option(help="Mean length of long prompts.")] = 512,
    long_share: Annotated[float, typer.Option(help="Share of long prompts, 0 to 1.")] = 0.0,
    output_tokens: Annotated[int, typer.Option(help="Mean output length; always generated in full.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and prompts.")] = 0,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: this many requests at once instead of --rate.", min=1)
    ] = None,
    warmup: Annotated[float, typer.Option(help="Seconds of load before, not counted.", min=0)] = 0.0,
    model: Annotated[str | None, typer.Option(help="Model name. Default: the server's first.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the result there as JSON; - for stdout.")
    ] = None,
) -> None:
    """Load a server and show latencies, each counted from the planned arrival."""
    try:
        workload = Workload(
            rate=rate,
            duration=duration,
            short_prompt_tokens=short_prompt_tokens,
            long_prompt_tokens=long_prompt_tokens,
            long_share=long_share,
            output_tokens=output_tokens,
        )
    except ValueError as error:
        raise typer.BadParameter("--" + str(error).replace("_", "-", 2)) from error
    bench = Bench(url=url, workload=workload, seed=seed, concurrency=concurrency, warmup=warmup, model=model)
    summary = _run(run_bench(bench, console))
    mode = "open loop" if concurrency is None else f"closed loop, {concurrency} at once: says nothing about a rate"
    console.print(load_table(summary, title=f"{url} ({mode})"))
    if json_file is not None:
        _write_json(json_file, {"url": url, "mode": mode, "seed": seed, **asdict(workload), **asdict(summary)})
    if summary.completed == 0:
        raise typer.Exit(1)


def tune(
    url: Annotated[str, typer.Argument(help="Running engine, such as http://127.0.0.1:8000.")],
    *,
    spec: Annotated[
        Path, typer.Option(help="TuningRun manifest (YAML); its spec is used.", exists=True, dir_okay=False)
    ],
    prometheus_url: Annotated[
        str | None, typer.Option(help="Prometheus that scrapes the engine, every second or so.")
    ] = None,
    admin_url: Annotated[str | None, typer.Option(help="The engine's admin port. Default: URL's port plus 1.")] = None,
    records: Annotated[Path | None, typer.Option(help="Folder of the records. Default: ./tuning/NAME.")] = None,
) -> None:
    """Search an engine's hot knobs under load, verify the winner on fresh load, print it; the engine is left as found.

    Stop it with Ctrl-C and start it again: it goes on from the records.
    """
    from headrace_tuner.by_hand import ByHand  # noqa: PLC0415  (Optuna and SciPy take a second; bench does without)

    if prometheus_url is None:
        raise typer.BadParameter(
            "--prometheus-url is missing: the numbers of a study come from the engine's live metrics. Run a Prometheus "
            f"with a scrape interval of 1 s on {url.rstrip('/')}/metrics and name it here"
        )
    token = os.environ.get(ADMIN_TOKEN_ENV, "")
    study = ByHand(url=url, spec=spec, prometheus_url=prometheus_url, admin_url=admin_url, token=token, records=records)
    _run(study.run(console))


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except TunerError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("stopped")
        raise typer.Exit(130) from None


def _write_json(where: str, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=2)
    if where == "-":
        typer.echo(text)
        return
    try:
        Path(where).write_text(text + "\n")
    except OSError as error:
        raise typer.BadParameter(f"--json {where}: cannot be written: {error.strerror}") from error
