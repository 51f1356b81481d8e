"""`python -m headrace_tuner run`: entry of the Job.

Exit codes: 0 the study has ended, with any verdict; 1 it cannot continue, see the log and the records; 3 another
tuner owns the records; 4 the records cannot be written; 143 ended by SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Annotated

import typer

from headrace_api.names import ADMIN_TOKEN_ENV
from headrace_client.kube import Kube
from headrace_core.errors import HeadraceError
from headrace_tuner import logs
from headrace_tuner.connections import Addresses
from headrace_tuner.errors import LeaseLost, StoreUnavailable
from headrace_tuner.job import StudyJob

log = logging.getLogger("headrace_tuner")
EXIT_FAILED, EXIT_LEASE, EXIT_STORE, EXIT_TERMINATED = 1, 3, 4, 143

app = typer.Typer(add_completion=False)


@app.callback()
def root() -> None:
    """The tuner's Job."""


@app.command("run")
def run_job(
    *,
    run: Annotated[str, typer.Option(help="TuningRun, as NAMESPACE/NAME.")],
    trial_url: Annotated[str, typer.Option(help="Serving port of the trial pod.")],
    trial_admin_url: Annotated[str, typer.Option(help="Admin port of the trial pod.")],
    service_url: Annotated[str, typer.Option(help="The InferenceService's Service.")],
    prometheus_url: Annotated[str, typer.Option(help="Prometheus that scrapes the trial pod.")],
) -> None:
    """Run the study of one TuningRun."""
    logs.configure()
    namespace, _, name = run.partition("/")
    if not namespace or not name:
        raise typer.BadParameter(f"--run {run}: write NAMESPACE/NAME")
    addresses = Addresses(
        trial_url=trial_url,
        admin_url=trial_admin_url,
        prometheus_url=prometheus_url,
        token=os.environ.get(ADMIN_TOKEN_ENV, ""),
    )
    sys.exit(
        asyncio.run(_execute(StudyJob(namespace=namespace, run=name, service_url=service_url, addresses=addresses)))
    )


async def _execute(job: StudyJob) -> int:
    me = asyncio.current_task()
    if me is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    try:
        async with Kube.auto() as kube:
            study = await job.execute(kube)
    except asyncio.CancelledError:
        log.info("ended by SIGTERM; the records are kept")
        return EXIT_TERMINATED
    except HeadraceError as error:
        log.error(str(error))
        return _code(error)
    log.info("done", extra={"verdict": study.verdict.value if study.verdict else None})
    return 0


def _code(error: Exception) -> int:
    if isinstance(error, LeaseLost):
        return EXIT_LEASE
    return EXIT_STORE if isinstance(error, StoreUnavailable) else EXIT_FAILED


if __name__ == "__main__":
    app()
