"""The trial target against an engine double: its answers, and how long the target waits for it."""

import pytest
from aiohttp import web

from headrace_client.engine import EngineState
from headrace_client.errors import EngineDenied, EngineRefused, EngineUnavailable, KnobProblem
from headrace_client.load.client import load_session
from headrace_core.evidence.windows import VoidKind
from headrace_tuner.errors import TrialVoid, TunerError
from headrace_tuner.targets.base import KnobsRefused
from headrace_tuner.targets.shadow import ShadowTarget, gauge


def test_a_gauge_is_summed_and_absent_is_not_zero() -> None:
    text = '# HELP a:b x\na:b{model_name="m"} 2.0\na:b{model_name="n"} 1\na:bc 9\n'
    assert gauge(text, "a:b") == 3
    with pytest.raises(TunerError, match="not a Headrace engine"):
        gauge(text, "a:c")


STATE = EngineState(
    generation=1, revision="r", config={}, knobs=(), device="cpu", dtype="float32", pretend_gpu=False, started_at=1.0,
    slo=None,
)  # fmt: skip


class Admin:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def get_config(self) -> EngineState:
        return self.next()

    async def patch_config(self, _knobs, revision=None, if_generation=None) -> EngineState:
        return self.next()

    def next(self) -> EngineState:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def target(*answers: object, url: str = "http://127.0.0.1:1", patience: float = 0.0) -> ShadowTarget:
    async with load_session() as session:
        return ShadowTarget(url, Admin(*answers), session=session, patience=patience)


async def test_an_engine_that_comes_back_is_waited_for(monkeypatch) -> None:
    async def nap(_: float) -> None:
        return None

    monkeypatch.setattr("headrace_tuner.targets.shadow.asyncio.sleep", nap)
    away = EngineUnavailable("no answer")
    assert await (await target(away, away, STATE, patience=60)).state() is STATE
    with pytest.raises(TunerError, match="has not answered for 0 s"):
        await (await target(away)).state()
    with pytest.raises(TunerError, match="HEADRACE_ADMIN_TOKEN"):
        await (await target(EngineDenied("401"))).state()


async def test_answers_to_a_patch_become_results_or_errors() -> None:
    refused = EngineRefused("HTTP 422", [KnobProblem("prefill_chunk_size", "too large")])
    with pytest.raises(KnobsRefused, match="prefill_chunk_size: too large"):
        await (await target(refused)).apply({}, revision="r")
    with pytest.raises(TrialVoid) as caught:
        await (await target(EngineUnavailable("reset"))).apply({}, revision="r")
    assert caught.value.kind is VoidKind.RESTARTED
    with pytest.raises(TunerError, match="HEADRACE_ADMIN_TOKEN"):
        await (await target(EngineDenied("401"))).apply({}, revision="r")


async def test_settling_waits_until_the_queue_is_empty() -> None:
    left = [3, 1, 0]

    async def metrics(_: web.Request) -> web.Response:
        waiting = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(text=f"headrace:running 0\nheadrace:waiting {waiting}\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with load_session() as session:
        shadow = ShadowTarget(url, Admin(), session=session)
        await shadow.settle(10)
        assert left == [0]
        left[:] = [5]
        with pytest.raises(TrialVoid, match="0 running, 5 waiting"):
            await shadow.settle(0)
        gone = ShadowTarget("http://127.0.0.1:1", Admin(), session=session)
        with pytest.raises(TrialVoid, match="no answer"):
            await gone.settle(1)
    await runner.cleanup()
