"""Liveness and readiness: a hanging thread is found, a step that is slow for a reason does not count."""

import asyncio
import threading
import time
from typing import Any

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.sim.step_time import StepShape, StepTimeModel
from headrace_engine.http.heartbeat import FIRST_SECONDS, FLOOR_SECONDS, deadline, largest_step
from headrace_engine.openai.prompts import Prompts

Serve = Any
AUTH = {"Authorization": "Bearer s3cret"}


class Clock:
    """A monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def live(server: Any) -> tuple[int, str]:
    answer = await server.http.get("/health/live")
    return answer.status_code, answer.json().get("reason", "")


async def until(condition: Any) -> None:
    """The test's time-out is the limit."""
    while not condition():
        await asyncio.sleep(0.002)


def limit_of(server: Any) -> float:
    return deadline(server.engine.loop.state.config, server.engine.metrics.cost_model)


# The deadline


def test_the_deadline_scales_with_the_largest_legal_step() -> None:
    unknown = StepTimeModel()
    small, large = (resolve({"max_num_batched_tokens": tokens}) for tokens in (256, 8192))
    assert FIRST_SECONDS < deadline(small, unknown) < deadline(large, unknown)
    known = learned(0.5)
    assert deadline(large, known) == pytest.approx(32 * deadline(small, known), rel=0.01)
    fast = learned(0.001)
    assert deadline(small, fast) == FLOOR_SECONDS


def test_without_chunks_a_whole_prompt_is_a_legal_step() -> None:
    chunked = resolve({"max_num_batched_tokens": 256, "max_model_len": 4096})
    whole = resolve({"max_num_batched_tokens": 256, "max_model_len": 4096, "enable_chunked_prefill": False})
    assert (largest_step(chunked), largest_step(whole)) == (256, 4096)
    assert deadline(whole, learned(0.5)) == pytest.approx(16 * deadline(chunked, learned(0.5)), rel=0.01)


@pytest.mark.parametrize("seen", [(1,), (256,), (1, 2, 4), (1, 256), (8, 64)])
def test_no_legal_step_reaches_the_deadline_whatever_was_seen_before(seen: tuple[int, ...]) -> None:
    """A step that takes 0.2 s plus 20 ms per token, as a slow CPU with a large model does."""
    model = StepTimeModel()
    for _ in range(50):
        for rows in seen:
            model.observe(shape(rows), 0.2 + 0.02 * rows)
    config = resolve({"max_num_batched_tokens": 8192})
    assert deadline(config, model) > 0.2 + 0.02 * 8192


def shape(rows: int) -> StepShape:
    return StepShape(
        rows=rows, prefill_rows=rows if rows > 1 else 0, decode_keys=100 if rows == 1 else 0,
        prefill_keys=rows if rows > 1 else 0, prefill_pairs=rows * (rows + 1) // 2 if rows > 1 else 0, sampled=1,
    )  # fmt: skip


def learned(seconds: float) -> StepTimeModel:
    """A step-time model fitted to steps of one token that take so long."""
    model = StepTimeModel()
    for _ in range(50):
        model.observe(shape(1), seconds)
    return model


# The server


async def test_a_frozen_step_fails_liveness_after_its_deadline_and_not_before(
    serve: Serve, gate: Any, clock: Clock
) -> None:
    server = await serve(http={"clock": clock})
    await server.complete()
    steps = gate(server)
    call = asyncio.create_task(server.complete(max_tokens=3, ignore_eos=True))
    await steps.begun(1)
    limit = limit_of(server)
    clock.ahead = limit - 10
    assert await live(server) == (200, ""), "a long step that is legal"
    clock.ahead = limit + 10
    status, reason = await live(server)
    assert (status, "a step has been running for" in reason) == (503, True)
    assert (await server.http.get("/health/ready")).status_code == 503
    steps.open()
    assert (await call).status_code == 200
    assert await live(server) == (200, ""), "it was slow after all"


async def test_an_idle_engine_stays_alive_and_is_not_woken(
    serve: Serve, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(http={"clock": clock})
    await server.complete()
    await server.idle()
    await until(lambda: not len(server.state.calls))
    asked: list[str] = []
    monkeypatch.setattr(server.engine.loop, "explain", asked.append)
    for _ in range(3):
        clock.ahead += 1e6
        assert await live(server) == (200, "")
    assert asked == []


async def test_a_thread_that_hangs_outside_a_step_is_found_too(
    serve: Serve, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(http={"clock": clock})
    await server.complete()
    go_on, reached = threading.Event(), threading.Event()

    def hang(*_: Any) -> Any:
        reached.set()
        assert go_on.wait(60)
        raise RuntimeError("injected")

    monkeypatch.setattr(server.engine.loop._scheduler, "reconfigure", hang)
    patch = asyncio.create_task(server.admin.patch("/admin/config", json={"knobs": {"seed": 1}}, headers=AUTH))
    await asyncio.to_thread(reached.wait, 60)
    assert await live(server) == (200, ""), "it is asked now"
    clock.ahead = limit_of(server) + 10
    status, reason = await live(server)
    assert (status, "has not answered" in reason) == (503, True)
    go_on.set()
    assert (await patch).status_code == 500
    await until(lambda: server.state.not_live() is None)


async def test_when_the_step_thread_dies_every_waiter_gets_an_error_and_health_fails(
    serve: Serve, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(max_num_seqs=2)
    steps = gate(server)
    body = {"max_tokens": 50, "ignore_eos": True}
    calls = [asyncio.create_task(server.complete(stream=at % 2 == 0, **body)) for at in range(6)]
    await until(lambda: sum(bool(call.generations) for call in server.state.calls._live) == 6)
    steps.let(2)
    await steps.begun(3)

    def broken(*_: Any) -> Any:
        raise SystemExit("injected")

    monkeypatch.setattr(server.engine.loop._scheduler, "plan", broken)
    steps.open()
    answers = await asyncio.gather(*calls)
    for at, answer in enumerate(answers):
        assert "injected" in answer.text
        if at % 2 == 0:
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.status_code == 500
    for route in ("/health/live", "/health/ready"):
        refused = await server.http.get(route)
        assert (refused.status_code, refused.json()["reason"]) == (503, "the step thread has ended")
    assert (await server.complete()).status_code == 503
    assert (await server.http.get("/metrics")).status_code == 200


async def test_health_and_other_streams_continue_while_a_megabyte_is_tokenized(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizing the long prompt waits until everything else is answered, so anything it blocked would never end."""
    server = await serve()
    reached, go_on = threading.Event(), threading.Event()
    real = Prompts._encode

    def slow(self: Any, text: str, *, special: bool) -> Any:
        if len(text) >= 1_000_000:
            reached.set()
            assert go_on.wait(60)
        return real(self, text, special=special)

    monkeypatch.setattr(Prompts, "_encode", slow)
    long = asyncio.create_task(server.complete(prompt="x" * 1_000_000))
    assert await asyncio.to_thread(reached.wait, 60)
    for path in ("/health/live", "/health/ready", "/health/startup", "/metrics", "/version", "/v1/models"):
        assert (await server.http.get(path)).status_code == 200
    assert (await server.admin.get("/admin/config", headers=AUTH)).status_code == 200
    stream = await server.complete(stream=True, max_tokens=20, ignore_eos=True)
    assert stream.text.endswith("data: [DONE]\n\n")
    go_on.set()
    refused = await long
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_server_that_loads_is_alive_and_neither_started_nor_ready(serve: Serve) -> None:
    server = await serve()
    server.state.engine, server.state._heartbeat, server.state.phase = None, None, type(server.state.phase).LOADING
    codes = [(await server.http.get(f"/health/{name}")).status_code for name in ("live", "startup", "ready")]
    assert codes == [200, 503, 503]
    refused = await server.complete()
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
