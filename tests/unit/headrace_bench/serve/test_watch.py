"""The client's own limits."""

from dataclasses import replace

import pytest
from serve_doubles import failed, record

from headrace_bench.serve.watch import Health, Watch, client_limits, watching
from headrace_client.load.client import ErrorKind
from headrace_core.evidence.percentiles import Distribution


def lag(seconds: float) -> Distribution:
    return Distribution(100, seconds, seconds, seconds, seconds)


HEALTHY = Health(seconds=10.0, cpu_share=0.3, loop_lag=lag(0.001))


def test_a_healthy_client_is_not_the_limit() -> None:
    assert client_limits(HEALTHY, [record()]) == ()


@pytest.mark.parametrize(
    ("health", "records", "words"),
    [
        (replace(HEALTHY, cpu_share=0.95), [record()], "95% of the one core"),
        (replace(HEALTHY, loop_lag=lag(0.03)), [record()], "event loop was up to 30 ms late"),
        (HEALTHY, [record(sent_at=3.5)], "sent within 500 ms of their time; 20 ms is tolerable"),
        (HEALTHY, [record(), failed(error=ErrorKind.CLIENT_FULL)], "1 requests were not sent"),
    ],
)
def test_a_client_at_its_limit_is_told_by_reason(health: Health, records: list, words: str) -> None:
    (reason,) = client_limits(health, records)
    assert words in reason


def test_lateness_is_judged_relative_to_the_measured_latency() -> None:
    slow = [record(ttft=30.0, gaps=(5.0, 5.0), e2e=40.0, sent_at=4.0)]
    assert client_limits(replace(HEALTHY, loop_lag=lag(0.2)), slow) == (), "a second on thirty bends nothing"


async def test_a_loop_that_hangs_is_seen_as_each_beat_would_have_seen_it() -> None:
    import asyncio
    import time

    async with watching() as watch:
        await asyncio.sleep(0.05)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        health = watch.health()
    assert isinstance(watch, Watch)
    assert health.loop_lag.max >= 0.15
    assert sum(late > 0.02 for late in watch.lags) >= 5, "ten beats were due in the hanging"
    assert health.seconds >= 0.3
