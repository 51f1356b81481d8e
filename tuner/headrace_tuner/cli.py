"""`headrace tune`: a study of an engine that is already running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from headrace_api.names import ADMIN_TOKEN_ENV
from headrace_client.terminal import console, run_async


def tune(
    url: Annotated[str, typer.Argument(help="Running engine, such as http://127.0.0.1:8000.")],
    *,
    spec: Annotated[
        Path, typer.Option(help="TuningRun manifest (YAML); its spec is used.", exists=True, dir_okay=False)
    ],
    prometheus_url: Annotated[
        str | None, typer.Option(help="Prometheus that scrapes the engine, about once a second.")
    ] = None,
    admin_url: Annotated[str | None, typer.Option(help="The engine's admin port. Default: URL's port plus 1.")] = None,
    records: Annotated[Path | None, typer.Option(help="Folder of the records. Default: ./tuning/NAME.")] = None,
) -> None:
    """Search an engine's hot knobs under load, verify the winner on fresh load and print it; restores the knobs.

    Stop it with Ctrl-C and start it again: it continues from the records.
    """
    from headrace_tuner.cli_study import CliStudy  # noqa: PLC0415  (Optuna takes a second; bench does without)

    if prometheus_url is None:
        raise typer.BadParameter(
            "--prometheus-url is missing: a study's numbers come from the engine's live metrics. Run a Prometheus "
            f"with a scrape interval of 1 s on {url.rstrip('/')}/metrics and give its address here"
        )
    token = os.environ.get(ADMIN_TOKEN_ENV, "")
    study = CliStudy(
        url=url, spec=spec, prometheus_url=prometheus_url, admin_url=admin_url, token=token, records=records
    )
    run_async(study.run(console))
