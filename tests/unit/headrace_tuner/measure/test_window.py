"""The order of one window, and what voids it, with an engine double."""

from dataclasses import replace

import pytest

from headrace_client.engine import EngineState
from headrace_client.load.client import Endpoint, load_session
from headrace_core.evidence.windows import VoidKind
from headrace_core.workload.plans import Workload
from headrace_tuner.errors import TrialVoid
from headrace_tuner.measure import window as meters
from headrace_tuner.measure.reading import ClientSide, WindowSpan
from headrace_tuner.measure.window import LiveMeter

STATE = EngineState(
    generation=1, revision="r", config={}, knobs=(), device="cpu", dtype="float32", pretend_gpu=False, started_at=1.0,
    slo=None,
)  # fmt: skip


class Target:
    """An engine that notes what it is asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = STATE
        self.asked: list[str] = []
        self.then = lambda: None

    async def state(self) -> EngineState:
        return self.now

    async def apply(self, knobs, *, revision: str) -> EngineState:
        kind = "warmup" if revision.endswith("-warmup") else "window"
        self.asked.append(f"apply {kind} {dict(knobs)}")
        self.now = replace(self.now, generation=self.now.generation + 1, revision=revision)
        began = self.now
        if kind == "window":
            self.then()
        return began

    async def settle(self, timeout: float) -> None:
        self.asked.append("settle")


@pytest.fixture
async def bench(server, monkeypatch, make):
    """A meter on the fake server, its target, and what reached the reading."""
    read: list[tuple[WindowSpan, ClientSide]] = []

    async def read_trial(_prometheus, span, client):
        read.append((span, client))
        return make.reading(30)

    async def scraped(_prometheus, _revision) -> None:
        return None

    monkeypatch.setattr(meters, "read_trial", read_trial)
    monkeypatch.setattr(meters, "wait_until_scraped", scraped)
    target = Target(server.url)
    async with load_session() as session:
        workload = Workload(rate=50, duration=0.2, short_prompt_tokens=4, output_tokens=2)
        yield (
            LiveMeter(
                target=target, prometheus=None, session=session, endpoint=Endpoint(url=server.url, model="fake"),
                workload=workload, warmup=0.1, ttft=2.0,
            ),
            target,
            read,
        )  # fmt: skip


async def test_the_order_of_a_window(bench, server) -> None:
    meter, target, read = bench
    measured = await meter.measure({"prefill_chunk_size": 64}, seed=1, label="run-t0001")
    assert target.asked == [
        "settle",
        "apply warmup {'prefill_chunk_size': 64}",
        "apply window {}",
        "settle",
    ]
    ((span, client),) = read
    assert span.generation == 3
    assert span.revision.startswith("run-t0001-")
    assert len(client.records) == 10
    assert len(server.bodies) == 15, "the warm-up's 5 requests are not in the window"
    assert span.start <= span.drained
    assert span.end == pytest.approx(span.start + 0.2)
    assert measured.window.start.timestamp() == pytest.approx(span.start, abs=1e-3)


async def test_two_windows_of_one_seed_have_the_same_arrivals_and_other_prompts(bench, server) -> None:
    meter, _, read = bench
    for _ in range(2):
        await meter.measure({}, seed=1, label="x")
    first, second = ([record.planned_at for record in client.records] for _, client in read)
    assert first == second
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(
    ("change", "words", "kind"),
    [
        ({"started_at": 2.0, "generation": 3}, "the engine restarted", VoidKind.RESTARTED),
        ({"generation": 9}, "something else changed the engine's config", VoidKind.DISTURBED),
    ],
)
async def test_another_engine_or_config_at_the_end_voids(bench, change, words: str, kind: VoidKind) -> None:
    meter, target, read = bench
    target.then = lambda: setattr(target, "now", replace(target.now, **change))
    with pytest.raises(TrialVoid, match=words) as caught:
        await meter.measure({}, seed=1, label="x")
    assert caught.value.kind is kind
    assert read == []


async def test_a_window_that_breaks_leaves_no_load_behind(bench, server) -> None:
    import asyncio

    meter, target, _ = bench

    def fall_over() -> None:
        raise TrialVoid(VoidKind.RESTARTED, "gone")

    target.then = fall_over
    with pytest.raises(TrialVoid, match="gone"):
        await meter.measure({}, seed=1, label="x")
    assert not [task for task in asyncio.all_tasks() if "LoadClient" in repr(task.get_coro())]


def test_limits_follow_the_load_and_the_slo() -> None:
    def meter(rate: float, duration: float, ttft: float | None) -> LiveMeter:
        workload = Workload(rate=rate, duration=duration, short_prompt_tokens=4, output_tokens=2)
        return LiveMeter(
            target=None, prometheus=None, session=None, endpoint=None, workload=workload, warmup=1.0, ttft=ttft
        )  # fmt: skip

    assert meter(1.0, 20.0, None).lag_limit == 0.5
    assert meter(1000.0, 20.0, None).lag_limit == 0.05
    assert meter(1000.0, 20.0, 2.0).lag_limit == pytest.approx(0.2)
    assert meter(1.0, 20.0, None).drain == 20
    assert meter(1.0, 2.0, None).drain == 10
