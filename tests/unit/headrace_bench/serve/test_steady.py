"""Whether a load was in a steady state."""

import random

import pytest
from serve_doubles import failed, record

from headrace_bench.serve.steady import Trend, steadiness
from headrace_client.load.client import ErrorKind, RequestRecord


def queue(rate: float, service: float, *, seconds: float = 60.0, seed: int = 1) -> list[RequestRecord]:
    """One server, first come first served."""
    rng, free, at, records = random.Random(seed), 0.0, 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        free = max(free, at) + rng.uniform(0.5, 1.5) * service
        records.append(record(at, ttft=free - at, gaps=(), e2e=free - at))
    return records


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_queue_is_an_overload_and_a_light_load_is_none(seed: int) -> None:
    over = steadiness(queue(4.0, 0.4, seed=seed), begin=0.0, end=60.0)
    assert over.trend is Trend.OVERLOADED
    assert over.in_flight > 0.5
    light = steadiness(queue(4.0, 0.05, seed=seed), begin=0.0, end=60.0)
    assert light.trend is Trend.STEADY


def test_a_queue_that_drains_is_still_warming_up() -> None:
    falling = [record(at / 2, ttft=10.0 - at / 15, gaps=(), e2e=10.0 - at / 15) for at in range(120)]
    falling = [item for item in falling if item.planned_at < 30 or item.planned_at % 1 == 0]
    assert steadiness(falling, begin=0.0, end=60.0).trend is Trend.WARMING


def test_few_requests_tell_nothing() -> None:
    assert steadiness(queue(0.3, 4.0), begin=0.0, end=60.0).trend is Trend.UNKNOWN


def test_unfinished_requests_stay_under_way_to_the_end() -> None:
    stuck = [failed(at / 2, error=ErrorKind.UNFINISHED) for at in range(120)]
    answered = [record(at / 2, ttft=0.1 + at / 40) for at in range(120)]
    assert steadiness([*stuck, *answered], begin=0.0, end=60.0).trend is Trend.OVERLOADED
