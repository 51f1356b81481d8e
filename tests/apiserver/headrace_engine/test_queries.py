"""The queries of docs/metrics.md, as they stand, on a real Prometheus that scrapes the engine's own exposition."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from ports import free_port
from prometheus_client import CONTENT_TYPE_LATEST

from headrace_api.metrics_page import QUERIES
from headrace_client.errors import PrometheusError
from headrace_client.prom import Prometheus, PromSample
from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import (
    FinishReason,
    RejectReason,
    Request,
    ScheduledSeq,
    SchedulerStats,
    StepPlan,
)
from headrace_core.sim.roofline import AttentionLayers, ModelShape, Peaks
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_local.binaries import BinarySource, find_all
from headrace_local.layout import cache_root

SHAPE = ModelShape(
    layer_params=10_000, head_params=1000, weight_bytes=22_000, kv_element_bytes=2,
    attention=(AttentionLayers(layers=2, query_heads=4, kv_heads=2, key_dim=8, value_dim=8),),
)  # fmt: skip


@dataclass
class World:
    """An engine's metrics, and the Prometheus that scrapes them twice a second."""

    metrics: EngineMetrics
    prometheus: Prometheus


def binary() -> Path:
    (found,) = find_all(cache_root(os.environ), os.environ, ("prometheus",))
    if found.source is BinarySource.MISSING:
        pytest.skip("no prometheus: put it on PATH, or run `headrace local binaries` once to build it")
    return found.path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    program, ports = binary(), (free_port(), free_port())
    metrics = EngineMetrics("m", SloSet(ttft_seconds=0.5, itl_seconds=0.2), max_model_len=2048)
    metrics.set_model(SHAPE, Peaks(flops=1e9, read_bytes=1e9))
    metrics.set_config(resolve({}), generation=1, revision="r1")
    metrics.set_identity(version="1", device="cpu", dtype="float32", pretend_gpu=False, started_at=1.0)

    async def expose(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", expose)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", ports[0]).start()
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [{"job_name": "engine", "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}]}],
    }))  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{ports[1]}", "--log.level=error",
    )  # fmt: skip
    try:
        async with Prometheus(f"http://127.0.0.1:{ports[1]}") as client:
            await scraped(client, 0.0)
            yield World(metrics, client)
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


async def scraped(prometheus: Prometheus, after: float) -> None:
    """Wait until there is a scrape after Unix time `after`; while Prometheus starts, it does not answer."""
    while True:
        try:
            await prometheus.wait_for_scrape("headrace:start_time_seconds", after, 60.0)
            return
        except PrometheusError:
            await asyncio.sleep(0.1)


def serve(metrics: EngineMetrics, at: int) -> None:
    """One request: 8 of its 20 prompt tokens are cached, and every third is too late."""
    now, name = float(at), str(at)
    record = GenerationRecord.of(Request(request_id=name, prompt_token_ids=tuple(range(20)), max_tokens=3, arrival=now))
    metrics.begin(record, now=now)
    step(metrics, name, 8, 12, prefill=True)
    record.start(now + 0.1, cached_tokens=8)
    for token in range(3):
        record.token(now + (0.6 if at % 3 == 0 else 0.3) + token * 0.05)
        metrics.token(record, 1)
        step(metrics, name, 20 + token, 1, prefill=False)
    reason = FinishReason.ABORT if at % 4 == 0 else FinishReason.LENGTH
    assert record.last_token is not None
    metrics.finished(record, reason, now=record.last_token)
    if at % 5 == 0:
        metrics.rejected(RejectReason.QUEUE_FULL, retry_after=2.0)
    metrics.stats(
        SchedulerStats(
            running=1, waiting=0, waiting_tokens=0, blocks_total=10, blocks_free=4, generation=1, steps=at,
            preemptions=at // 10, tokens_prefill=0, tokens_decode=0, tokens_recomputed=0, cache_queries=20 * (at + 1),
            cache_hits=8 * (at + 1),
        )
    )  # fmt: skip


def step(metrics: EngineMetrics, name: str, start: int, count: int, *, prefill: bool) -> None:
    seq = ScheduledSeq(
        request_id=name, start=start, token_ids=(1,) * count, block_table=(), samples=True, is_prefill=prefill
    )
    metrics.step(StepPlan(step=1, generation=1, seqs=(seq,)), 1, seconds=0.001, failed=False)


@pytest.mark.timeout(180)
async def test_every_query_answers(world: World) -> None:
    for at in range(60):
        serve(world.metrics, at)
        await asyncio.sleep(0.05)  # load over several scrapes: a rate needs them
    await scraped(world.prometheus, time.time() + 1.0)  # Prometheus speaks Unix time
    answers: dict[str, list[PromSample]] = {}
    for query in QUERIES:
        answers[query.question] = found = await world.prometheus.query(query.expr)
        assert found, query.question
        for sample in found:
            assert math.isfinite(sample.value), query.question
            assert not query.is_share or 0 <= sample.value <= 1, query.question
    of = {question.split(":")[0]: samples[0].value for question, samples in answers.items()}
    # Of 60: 20 are late, and of the 40 others the 10 that were aborted are not judged.
    assert of["SLO attainment"] == pytest.approx(30 / 50, abs=0.02)
    assert of["Prefix cache hit rate, by tokens"] == pytest.approx(0.4, abs=0.01)
    assert of["Share of the computed tokens that were of no use to a client"] == pytest.approx(0.25, abs=0.02)
    assert of["KV usage of the fullest engine"] == pytest.approx(0.6)
    missed = {
        sample.labels["target"]: sample.value
        for sample in answers["Which threshold is missed, as a share of all judged requests"]
    }
    assert missed == {"ttft": pytest.approx(20 / 50, abs=0.02), "itl": 0}
    assert of["MFU of each engine while busy"] > 0
    assert of["MBU of each engine while busy"] > 0
    assert of["Mean tokens of a step"] == pytest.approx(15 / 4, abs=0.1)
    assert 0 < of["95th percentile of TTFT, seconds"] < 0.7
