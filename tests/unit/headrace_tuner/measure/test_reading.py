"""What voids a trial, without a server: counts that disagree, a client at its limit, an engine that fell over."""

import pytest
from aiohttp import web

from headrace_client.engine import EngineState
from headrace_client.errors import EngineDenied, EngineRefused, EngineUnavailable, KnobProblem
from headrace_client.load.client import ErrorKind, RequestRecord, load_session
from headrace_core.workload.plans import RequestKind
from headrace_tuner.errors import TrialVoid, TunerError
from headrace_tuner.measure.reading import ClientSide, check_client, check_counts
from headrace_tuner.targets.shadow import KnobsRefused, ShadowTarget, gauge


def record(error: str | None = None, *, lag: float = 0.0) -> RequestRecord:
    return RequestRecord(
        planned_at=1.0, sent_at=1.0 + lag, kind=RequestKind.SHORT, prompt_tokens=1, output_tokens=1, error=error
    )


OK, BUSY, LATE = record(), record("http_429"), record(ErrorKind.UNFINISHED)


@pytest.mark.parametrize(
    ("finished", "rejected", "early", "holds"),
    [
        (2, 1, 0, True),  # what never ended may or may not be counted
        (3, 1, 0, True),
        (4, 1, 0, False),  # somebody else sends requests
        (4, 1, 1, True),  # or a warm-up request came late
        (1, 1, 0, False),  # an answer that the engine did not count
        (0, 0, 0, False),
    ],
)
def test_counts_agree_but_for_what_nobody_can_place(finished, rejected, early, holds) -> None:
    client = ClientSide(records=[OK, OK, BUSY, LATE], early=early)
    if holds:
        check_counts(client, finished=finished, rejected=rejected)
    else:
        with pytest.raises(TrialVoid, match="the client 3 with an answer of 4 sent"):
            check_counts(client, finished=finished, rejected=rejected)


def test_refusals_server_errors_and_late_ones_are_data_not_void() -> None:
    check_client(ClientSide(records=[OK, BUSY, LATE, record("http_500"), record(ErrorKind.TIMEOUT)]))


@pytest.mark.parametrize("error", [ErrorKind.RESET, ErrorKind.CONNECT, ErrorKind.PROTOCOL, ErrorKind.WRONG_LENGTH])
def test_a_broken_stream_voids(error: str) -> None:
    with pytest.raises(TrialVoid, match="1 of 2 requests broke off") as caught:
        check_client(ClientSide(records=[OK, record(error)]))
    assert caught.value.restarted is (error in (ErrorKind.RESET, ErrorKind.CONNECT))


def test_a_client_at_its_limit_voids() -> None:
    with pytest.raises(TrialVoid, match="could not keep its schedule"):
        check_client(ClientSide(records=[OK] * 50 + [record(lag=0.3)], lag_limit=0.25))
    with pytest.raises(TrialVoid, match="could not be sent"):
        check_client(ClientSide(records=[OK, record(ErrorKind.CLIENT_FULL)]))
    check_client(ClientSide(records=[record(lag=0.2)], lag_limit=0.25))


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


async def test_what_a_patch_may_answer() -> None:
    refused = EngineRefused("HTTP 422", [KnobProblem("prefill_chunk_size", "too large")])
    with pytest.raises(KnobsRefused, match="prefill_chunk_size: too large"):
        await (await target(refused)).apply({}, revision="r")
    with pytest.raises(TrialVoid) as caught:
        await (await target(EngineUnavailable("reset"))).apply({}, revision="r")
    assert caught.value.restarted
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
