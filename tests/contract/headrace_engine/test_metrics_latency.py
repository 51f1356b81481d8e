"""Latencies as a client measures them, against the server's own histograms.

A client sees every event a little later than the server counts it: by the way through the event loop and the socket,
and by whatever else the machine does just then. Three things keep the comparison meaningful without asserting a speed:

- Steps are made long beside that way, so that a bucket (12 % wide) is wider than the usual delay.
- Distributions are compared with one bucket of tolerance at each bound: as many requests are at or below it by the
  server's count as by the client's, where the client's bound may be the neighbour's. That holds exactly when both,
  sorted, can be paired off with no pair further apart than one bucket.
- A delay beyond that can make a round fail, a wrong histogram fails every round. So one round in which all latencies
  agree is proof, and rounds are played until there is one.

What noise cannot excuse is asserted in every round: the counts, and that no latency is longer by the server's count
than by the client's.
"""

import asyncio
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace_core import metric_names as names
from headrace_core.metric_names import Metric

Serve = Any
STEP_SECONDS = (0.06, 0.18)
ROUNDS = 40
AGREE_ON = (names.TTFT, names.ITL, names.E2E)


@dataclass
class Seen:
    """One streamed request by the client's clock."""

    sent: float
    stamps: list[float] = field(default_factory=list)

    @property
    def latencies(self) -> dict[str, list[float]]:
        gaps = [after - before for before, after in itertools.pairwise(self.stamps)]
        return {
            names.TTFT.name: [self.stamps[0] - self.sent],
            names.ITL.name: gaps,
            names.E2E.name: [self.stamps[-1] - self.sent],
        }


async def stream(server: Any, *, tokens: int, delay: float) -> Seen:
    """Ask for `tokens` tokens after `delay` seconds; every token is the letter A, so that each comes at once."""
    await asyncio.sleep(delay)
    body = {"prompt": "hello", "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0,
            "logit_bias": {"65": 100}}  # fmt: skip
    seen = Seen(time.monotonic())
    async with server.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                seen.stamps.append(time.monotonic())
    assert len(seen.stamps) == tokens
    return seen


@dataclass
class Histogram:
    """Cumulative counts by upper bound, and the sum of the samples."""

    counts: dict[float, float]
    total: float

    def since(self, before: "Histogram") -> "Histogram":
        grown = {bound: count - before.counts[bound] for bound, count in self.counts.items()}
        return Histogram(grown, self.total - before.total)


def histogram(server: Any, metric: Metric) -> Histogram:
    counts: Counter[float] = Counter()
    for family in server.engine.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == f"{metric.name}_bucket":
                counts[float(sample.labels["le"])] += sample.value
    return Histogram(dict(sorted(counts.items())), server.metric(f"{metric.name}_sum"))


def disagreement(values: Sequence[float], found: Histogram) -> str | None:
    """Where the histogram of `values` and `found` differ by more than one bucket, or None."""
    bounds = [-math.inf, *found.counts, math.inf]
    at_most = [sum(value <= bound for value in values) for bound in bounds]
    for at, bound in enumerate(bounds[1:-1], start=1):
        if not at_most[at - 1] <= found.counts[bound] <= at_most[at + 1]:
            return f"{found.counts[bound]:g} are at most {bound:g} by the server's count, {at_most[at]} by the client's"
    return None


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a server's steps take between `STEP_SECONDS`."""

    def slow(server: Any) -> None:
        real, rng = server.engine.runner.run, random.Random(5)

        def run(*arguments: Any) -> Any:
            time.sleep(rng.uniform(*STEP_SECONDS))  # stands for work
            return real(*arguments)

        monkeypatch.setattr(server.engine.runner, "run", run)

    return slow


async def play(server: Any, rng: random.Random) -> list[Seen]:
    """Twelve requests, more than can run at once, so that some queue."""
    plans = [(rng.choice([1, 2, 4, 7]), rng.uniform(0, 0.3)) for _ in range(12)]
    seen = await asyncio.gather(*(stream(server, tokens=tokens, delay=delay) for tokens, delay in plans))
    await server.idle()
    return list(seen)


@pytest.mark.timeout(300)
async def test_client_and_server_agree_within_one_bucket(serve: Serve, slow_steps: Any) -> None:
    server = await serve(max_num_seqs=5)
    await server.complete()
    slow_steps(server)
    rng = random.Random(7)
    for _ in range(ROUNDS):
        before = {metric.name: histogram(server, metric) for metric in AGREE_ON}
        seen = await play(server, rng)
        problems: list[str | None] = []
        for metric in AGREE_ON:
            values = [value for one in seen for value in one.latencies[metric.name]]
            found = histogram(server, metric).since(before[metric.name])
            assert found.counts[math.inf] == len(values), f"{metric.name}: each is counted once"
            if metric is not names.ITL:
                assert 0 < found.total <= sum(values), f"{metric.name}: the server is before the client"
            problems.append(disagreement(values, found))
        if not any(problems):
            return
    pytest.fail(f"in none of {ROUNDS} rounds did they agree; in the last: {problems}")


async def test_counts_of_finished_requests_agree(
    serve: Serve, slow_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTFT counts requests with a token, ITL all further tokens; for each request e2e >= TTFT >= queue >= 0."""
    server = await serve(max_num_seqs=3)
    metrics = server.engine.metrics
    ended: list[Any] = []
    real = metrics.finished

    def finished(times: Any, reason: Any, *, now: float, **more: Any) -> None:
        ended.append((times, now))
        real(times, reason, now=now, **more)

    monkeypatch.setattr(metrics, "finished", finished)
    slow_steps(server)
    seen = await play(server, random.Random(11))
    outputs = [len(one.stamps) for one in seen]
    assert len(ended) == len(outputs)
    for own, vllm in ((names.TTFT, names.VLLM_TTFT), (names.ITL, names.VLLM_ITL), (names.E2E, names.VLLM_E2E)):
        counted = sum(count - 1 for count in outputs) if own is names.ITL else len(outputs)
        assert server.metric(f"{own.name}_count") == server.metric(f"{vllm.name}_count") == counted
    assert server.metric("headrace:output_tokens_total") == sum(outputs)
    for times, now in ended:
        assert now - times.arrival >= times.ttft >= times.started - times.arrival >= 0
        assert times.started >= times.queued >= times.arrival
    queued = sum(times.started - times.arrival for times, _ in ended)
    assert server.metric("headrace:queue_seconds_sum") == pytest.approx(queued)
    assert queued > 0


async def test_the_comparison_can_fail() -> None:
    values = [0.05, 0.06, 0.3, 0.31]
    bounds = [*names.FINE_BUCKETS, math.inf]
    exact = Histogram({bound: float(sum(value <= bound for value in values)) for bound in bounds}, sum(values))
    assert disagreement(values, exact) is None
    assert disagreement([value * 1.1 for value in values], exact) is None
    assert disagreement([value * 1.3 for value in values], exact) is not None
    assert disagreement([*values[:-1], 5.0], exact) is not None
    assert disagreement([*values, 0.3], exact) is not None
