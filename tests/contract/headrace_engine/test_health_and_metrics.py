"""Health, metrics, and what happens when a forward or the step thread fails."""

import asyncio
from typing import Any

import pytest

from headrace_core.evidence.slo import SloSet
from headrace_core.metric_names import ALL_METRICS
from headrace_engine.http.auth import OPEN_PATHS
from headrace_engine.loop import engine_loop as loop

Serve = Any
READINESS = ("/health/ready", "/health", "/ping")
AUTH = {"Authorization": "Bearer s3cret"}


async def test_every_metric_of_the_table_is_exposed(serve: Serve) -> None:
    server = await serve(slo=SloSet(ttft_seconds=1, itl_seconds=1, tpot_seconds=1, e2e_seconds=1))
    await server.complete()
    text = (await server.http.get("/metrics")).text
    for metric in ALL_METRICS:
        assert f"# TYPE {metric.series} {metric.kind}" in text, metric.name
    assert "_created" not in text
    families = {family.name: family for family in server.engine.metrics.registry.collect()}
    for metric in ALL_METRICS:
        assert families[metric.name].samples, metric.name
        assert families[metric.name].type == metric.kind.value


async def test_counts_add_up(serve: Serve) -> None:
    server = await serve(slo=SloSet(ttft_seconds=0.0371, e2e_seconds=3600))
    for count in (1, 5, 9):
        await server.complete(max_tokens=count, ignore_eos=True)
    now = {"config_generation": "1", "revision": "r1", "model_name": "tiny"}
    assert server.metric("headrace:ttft_seconds_count", **now) == 3
    assert server.metric("headrace:itl_seconds_count", **now) == 12
    assert server.metric("headrace:tpot_seconds_count", **now) == 2
    assert server.metric("headrace:e2e_seconds_count", **now) == 3
    assert server.metric("headrace:output_tokens_total", **now) == 15
    assert server.metric("headrace:prompt_tokens_total", **now) == 15
    assert server.metric("headrace:slo_requests_total", **now) == 3
    good = server.metric("headrace:slo_requests_good_total", **now)
    assert good == server.metric("headrace:ttft_seconds_bucket", le="0.0371", **now), "the SLO is a bucket bound"
    e2e, ttft = (server.metric(f"headrace:{name}_seconds_sum", **now) for name in ("e2e", "ttft"))
    assert e2e >= ttft >= server.metric("headrace:queue_seconds_sum", **now) >= 0
    assert server.metric("vllm:generation_tokens_total") == 15
    assert server.metric("vllm:inter_token_latency_seconds_count") == 12


async def test_a_request_that_lived_through_a_change_is_mixed(serve: Serve) -> None:
    server = await serve()
    long = asyncio.create_task(server.complete(max_tokens=600, ignore_eos=True))
    while not server.engine.loop.stats.running:
        await asyncio.sleep(0.002)
    changed = await server.admin.patch("/admin/config", json={"knobs": {"decode_ratio": 0.1}}, headers=AUTH)
    assert changed.json()["generation"] == 2
    await long
    await server.complete()
    assert server.metric("headrace:requests_total", config_generation="mixed") == 1
    assert server.metric("headrace:requests_total", config_generation="2") == 1
    assert server.metric("headrace:requests_total", config_generation="1") == 0
    assert server.metric("headrace:ttft_seconds_count", config_generation="mixed") == 1


async def test_series_of_old_generations_are_dropped(serve: Serve) -> None:
    server = await serve()
    for at in range(1, 9):
        await server.complete(max_tokens=1)
        await server.admin.patch("/admin/config", json={"knobs": {"decode_ratio": at / 10}}, headers=AUTH)
    families = server.engine.metrics.registry.collect()
    seen = {sample.labels["config_generation"] for one in families for sample in one.samples
            if "config_generation" in sample.labels}  # fmt: skip
    assert seen == {"6", "7", "8", "9"}


async def test_a_forward_that_raises_fails_its_batch_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve()
    real, failing = server.engine.runner.run, [True]

    def run(plan: Any, params: Any) -> Any:
        if failing and plan.seqs[0].start > 8:
            failing.clear()
            raise RuntimeError("injected")
        return real(plan, params)

    monkeypatch.setattr(server.engine.runner, "run", run)
    answer = await server.complete(max_tokens=20, ignore_eos=True)
    assert answer.status_code == 500
    assert "injected" in answer.json()["error"]["message"]
    assert server.metric("headrace:step_failures_total") == 1
    assert server.metric("headrace:requests_total", finish_reason="error") == 1
    assert (await server.complete(max_tokens=20, ignore_eos=True)).status_code == 200
    failing.append(True)
    stream = await server.complete(max_tokens=20, ignore_eos=True, stream=True)
    *_, error, done = [line for line in stream.text.split("\n\n") if line]
    assert '"error"' in error
    assert done == "data: [DONE]"
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


async def test_a_dead_step_thread_fails_waiters_and_liveness(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve()
    assert (await server.http.get("/health/live")).status_code == 200

    def broken(*_: Any) -> Any:
        raise SystemExit("injected")

    monkeypatch.setattr(server.engine.runner, "run", broken)
    assert (await server.complete()).status_code == 500
    for route in ("/health/live", "/health/ready"):
        answer = await server.http.get(route)
        assert answer.status_code == 503
        assert "step thread" in answer.json()["reason"]
    assert (await server.complete()).status_code == 503


async def test_wrong_books_end_an_idle_engine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "QUIET_SECONDS", 0.01)
    server = await serve()
    assert (await server.complete()).status_code == 200
    assert server.engine.loop._scheduler.state.pool.allocate(1) is not None  # a leaked block
    await server.complete()
    while (await server.http.get("/health/live")).status_code == 200:
        await asyncio.sleep(0.01)
    assert "neither free nor held" in (await server.complete()).json()["error"]["message"]


async def test_every_get_route_answers_head(serve: Serve) -> None:
    server = await serve()
    for path in (*OPEN_PATHS, "/v1/models", "/v1/models/tiny"):
        head, whole = await server.http.head(path), await server.http.get(path)
        assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"]), path
        assert head.content == b""
        assert set((await server.http.delete(path)).headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_loading_and_draining_are_not_ready(serve: Serve) -> None:
    server = await serve()
    for path in READINESS:
        assert (await server.http.get(path)).status_code == (await server.http.head(path)).status_code == 200
    server.state.drain()
    for path in READINESS:
        assert (await server.http.get(path)).status_code == (await server.http.head(path)).status_code == 503
    assert (await server.http.get("/health/live")).status_code == 200
    refused = await server.complete()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    server.state.engine = None
    assert (await server.http.get("/health/startup")).status_code == 503
    assert (await server.http.get("/health/live")).status_code == 200
    assert set((await server.http.get("/version")).json()) == {"version", "torch", "transformers", "python"}
