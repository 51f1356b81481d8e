"""One run of load by hand, with progress on a terminal."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headrace_tuner.load import LoadClient, RequestRecord, find_endpoint, load_session
from headrace_tuner.settings import check_fits
from headrace_tuner.summary import Summary, summarize
from headrace_tuner.workload import Workload, derive_seed, endless_load, plan_load

DRAIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is asked for. `concurrency` makes it a closed loop; `warmup` in seconds."""

    url: str
    workload: Workload
    seed: int
    concurrency: int | None = None
    warmup: float = 0.0
    model: str | None = None


async def run_bench(bench: Bench, console: Console) -> Summary:
    """Run it. Raises `TunerError` where the server cannot be used."""
    async with load_session() as session:
        endpoint = await find_endpoint(session, bench.url, bench.model)
        check_fits(bench.workload, endpoint)
        salt = secrets.token_hex(4)  # a second run must not find the first one's prompts in a cache
        if bench.warmup > 0:
            warm = replace(bench, workload=replace(bench.workload, duration=bench.warmup))
            client = LoadClient(endpoint=endpoint, session=session, salt=f"{salt}-warmup")
            await _shown(warm, client, console, seed=derive_seed(bench.seed, "warmup"), title="warm-up")
        client = LoadClient(endpoint=endpoint, session=session, salt=salt)
        records = await _shown(bench, client, console, seed=bench.seed, title="load")
    return summarize(records, duration=bench.workload.duration)


async def _shown(bench: Bench, client: LoadClient, console: Console, *, seed: int, title: str) -> list[RequestRecord]:
    total = None if bench.concurrency else bench.workload.requests
    columns = (
        TextColumn(f"{title:<8}"),
        BarColumn(),
        TextColumn("{task.completed:g} ended, {task.fields[flying]} under way, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, flying=0, failed=0)

        def show() -> None:
            seen = client.progress
            progress.update(task, completed=seen.ended, flying=seen.sent - seen.ended, failed=seen.failed)

        running = asyncio.create_task(_load(bench, client, seed))
        try:
            while not running.done():
                show()
                await asyncio.wait([running], timeout=0.2)
        finally:
            running.cancel()
            await asyncio.wait([running])
        show()
    return running.result()


async def _load(bench: Bench, client: LoadClient, seed: int) -> list[RequestRecord]:
    if bench.concurrency is None:
        return await client.open_loop(plan_load(bench.workload, seed), drain=DRAIN_SECONDS)
    endless = endless_load(bench.workload, seed)
    return await client.closed_loop(endless, concurrency=bench.concurrency, duration=bench.workload.duration)
