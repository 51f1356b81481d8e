"""Records of HTTP calls, without a server: the sums over a call's generations, and how a drain cuts them."""

from typing import Any

import pytest

from headrace_core.scheduler.events import FinishReason, Rejected, RejectReason
from headrace_engine.http.calls import CallRegistry, HttpCall, current_call, submit
from headrace_engine.loop.live_request import RejectedError
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.outputs import Done, Event


class Sink:
    def __init__(self) -> None:
        self.got: list[tuple[int, Event]] = []

    def put(self, index: int, event: Event) -> None:
        self.got.append((index, event))


class Live:
    """The part of a live request that a call uses."""

    def __init__(self, index: int, **more: Any) -> None:
        self.record = GenerationRecord(
            id=f"cmpl-7-{index}", arrival=1.0, prompt_tokens=5, max_tokens=9, index=index, **more
        )


def begun(calls: CallRegistry, name: str = "mine") -> HttpCall:
    return calls.begin(method="POST", path="/v1/completions", client="", request_id=name)


def joined(calls: CallRegistry, *live: Live) -> tuple[HttpCall, Sink]:
    call, sink = begun(calls), Sink()
    call.join(live, sink)  # type: ignore[arg-type]
    return call, sink


def test_a_call_sums_up_its_generations() -> None:
    call, _ = joined(CallRegistry(), Live(0), Live(1, fork_of="cmpl-7-0"))
    first, fork = call.generations
    first.start(1.5, 4)
    fork.start(1.5, 5)
    for at in (2.0, 3.0):
        first.token(at)
    fork.token(1.75)
    fork.end(FinishReason.STOP, 1.75)
    assert (call.prompt_tokens, call.cached_tokens, call.output_tokens) == (5, 4, 3), "a shared prompt counts once"
    assert (call.ttft, call.call_id, call.finish_reasons) == (0.75, "cmpl-7", [None, "stop"])
    call.status = 499
    assert call.finish_reasons == ["abort", "stop"]


def test_a_cut_ends_only_running_generations() -> None:
    calls = CallRegistry(clock=lambda: 8.0)
    call, sink = joined(calls, Live(0), Live(1))
    ended, runs = call.generations
    ended.end(FinishReason.LENGTH, 4.0)
    runs.token(3.0)
    begun(calls, "another, without generations")
    assert calls.cut("out of time") == 1
    ((index, event),) = sink.got
    assert isinstance(event, Done)
    assert (index, event.reason, event.num_output_tokens, str(event.problem)) == (1, "error", 1, "out of time")
    assert (runs.reason, runs.ended, str(runs.problem)) == (FinishReason.ERROR, 8.0, "out of time")
    assert (ended.reason, ended.problem) == (FinishReason.LENGTH, None)
    assert calls.cut("again") == 0


def test_a_call_that_ended_keeps_its_records_but_no_events_and_no_content() -> None:
    calls = CallRegistry(keep_content=True)
    call, _ = joined(calls, Live(0))
    assert call.generations[0].text == []
    calls.end(call)
    call.forget_content()
    assert calls.find("cmpl-7") == calls.find("cmpl-7-0") == calls.find("mine") == [call]
    assert call.sink is call.body is call.generations[0].text is None
    assert calls.cut("too late") == 0


async def test_generations_that_the_scheduler_refuses_are_not_recorded_in_the_call() -> None:
    class Full:
        async def submit(self, _: object) -> None:
            call = current_call()
            assert call is not None
            assert [item.id for item in call.generations] == ["cmpl-7-0"]
            raise RejectedError(Rejected("cmpl-7-0", RejectReason.QUEUE_FULL, "full"))

    calls = CallRegistry()
    call = begun(calls)
    with pytest.raises(RejectedError):
        await submit(Full(), [Live(0)], Sink())  # type: ignore[arg-type, list-item]
    assert call.generations == []
    calls.end(call)
    assert calls.find("mine") == []
