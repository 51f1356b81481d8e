"""The same load on the service while the operator applies a proposal, so that before and after are comparable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace_client.load.client import LoadClient
from headrace_core.workload.plans import Workload, endless_load

log = logging.getLogger(__name__)
POLL_SECONDS = 2.0
DEADLINE_SECONDS = 900.0


async def background_load(
    client: LoadClient,
    workload: Workload,
    *,
    seed: int,
    done: Callable[[], Awaitable[bool]],
    deadline: float = DEADLINE_SECONDS,
    poll: float = POLL_SECONDS,
) -> bool:
    """Send `workload` without a break until `done`, for `deadline` seconds at most. Returns whether `done` was met."""
    load = asyncio.create_task(client.open_loop(endless_load(workload, seed), drain=0.0))
    log.info("keeping the load on the service", extra={"url": client.endpoint.url, "rate": workload.rate})
    try:
        async with asyncio.timeout(deadline):
            while not await done():
                if load.done():
                    load.result()
                await asyncio.sleep(poll)
            return True
    except TimeoutError:
        log.warning("stopped the load: the rollout did not end in time", extra={"seconds": deadline})
        return False
    finally:
        load.cancel()
        await asyncio.wait([load])
        counts = client.progress
        log.info("ended the load", extra={"sent": counts.sent, "ended": counts.ended, "failed": counts.failed})
