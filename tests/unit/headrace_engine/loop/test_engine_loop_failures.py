"""An error in one request fails only that request; a loop that dies fails every waiting caller at once."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from headrace_core.scheduler.events import FinishReason, ScheduledSeq, StepPlan
from headrace_engine.loop import engine_loop as loop_module
from headrace_engine.loop.inbox import EngineDeadError
from headrace_engine.loop.probe import probe
from headrace_engine.loop.runner import ModelRunner, StepOutput
from headrace_engine.loop.step_retry import run_step
from headrace_engine.outputs import Done, RequestProblem
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.token_state import TokenState

Looped = Any
Fault = Callable[[StepPlan], BaseException | None]


def inject(monkeypatch: pytest.MonkeyPatch, runner: ModelRunner, fault: Fault) -> list[StepPlan]:
    """Let `fault` decide which steps raise; return the list of all steps that were tried."""
    tried: list[StepPlan] = []
    real = runner.run

    def run(plan: StepPlan, requests: Any) -> StepOutput:
        tried.append(plan)
        error = fault(plan)
        if error is not None:
            raise error
        return real(plan, requests)

    monkeypatch.setattr(runner, "run", run)
    return tried


def holds(plan: StepPlan, name: str) -> bool:
    return any(seq.request_id == name for seq in plan.seqs)


def end_of(events: list[Any]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def tokens_of(events: list[Any]) -> list[int]:
    return [token for event in events for token in event.token_ids]


async def test_a_request_that_breaks_the_forward_fails_alone(looped: Looped, monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()
    options = [{"temperature": 1.0, "seed": str(at), "presence_penalty": 0.5, "max_tokens": 12} for at in range(4)]
    alone = [tokens_of(await made.run(f"alone {at}", [5, 6, at], **option)) for at, option in enumerate(options)]
    inject(
        monkeypatch, made.runner,
        lambda plan: RuntimeError("injected") if holds(plan, "2") and plan.seqs[-1].start > 5 else None,
    )  # fmt: skip
    for at, option in enumerate(options):
        await made.submit(f"{at}", [5, 6, at], **option)
    ends = [await made.collect(f"{at}") for at in range(4)]
    for at in (0, 1, 3):
        assert tokens_of(ends[at]) == alone[at], "the tokens of the retry are those of an undisturbed run"
        assert end_of(ends[at]).reason is FinishReason.LENGTH
    failed = end_of(ends[2])
    assert failed.reason is FinishReason.ERROR
    assert str(failed.problem) == "the model's forward pass failed for this request: RuntimeError: injected"
    assert tokens_of(ends[2]) == alone[2][: failed.num_output_tokens]
    assert made.loop.alive
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total
    text = made.metrics.render().decode()
    assert any(
        line.startswith("headrace:requests_total") and 'finish_reason="error"' in line for line in text.split("\n")
    )


async def test_if_all_fail_alone_all_fail_and_the_next_request_works(
    looped: Looped, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = looped()
    broken = [True]
    tried = inject(monkeypatch, made.runner, lambda _: RuntimeError("injected") if broken else None)
    await made.loop.submit([made.request(f"{at}") for at in range(3)])
    for at in range(3):
        assert end_of(await made.collect(f"{at}")).reason is FinishReason.ERROR
    assert [len(plan.seqs) for plan in tried] == [3, 1, 1, 1]
    broken.clear()
    assert end_of(await made.run("next")).reason is FinishReason.LENGTH


async def test_one_request_alone_is_not_tried_twice(looped: Looped, monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()
    tried = inject(monkeypatch, made.runner, lambda _: RuntimeError("injected"))
    done = end_of(await made.run("a"))
    assert str(done.problem) == "the model's forward pass failed: RuntimeError: injected"
    assert len(tried) == 1


async def test_a_device_in_a_bad_state_ends_the_thread(looped: Looped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "MAX_FAILED_STEPS", 3)
    made = looped()
    inject(monkeypatch, made.runner, lambda _: RuntimeError("injected"))
    for at in range(3):
        assert end_of(await made.run(f"{at}")).reason is FinishReason.ERROR
    while made.loop.alive:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineDeadError, match="3 steps in a row failed"):
        await made.submit("next")


async def test_failures_that_others_survive_do_not_end_the_thread(
    looped: Looped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "MAX_FAILED_STEPS", 2)
    made = looped()
    await made.submit("good", max_tokens=60)
    inject(
        monkeypatch, made.runner,
        lambda plan: RuntimeError("injected") if any(seq.request_id.startswith("bad") for seq in plan.seqs) else None,
    )  # fmt: skip
    for at in range(5):
        assert end_of(await made.run(f"bad {at}")).reason is FinishReason.ERROR
    assert end_of(await made.collect("good")).num_output_tokens == 60
    assert made.loop.alive


# Families and copies, on hand-made plans


@pytest.fixture
def runner(tiny: Any) -> ModelRunner:
    from headrace_engine.attention.kv_cache import make_pool
    from headrace_engine.attention.sdpa import SdpaBackend

    model = tiny("llama")
    pool = make_pool(probe(model), num_blocks=20, block_size=4, device=model.device, dtype=model.dtype)
    return ModelRunner(model, pool, SdpaBackend())


def seq(
    name: str, start: int, ids: tuple[int, ...], table: tuple[int, ...], fork_of: str | None = None
) -> ScheduledSeq:
    return ScheduledSeq(
        request_id=name, start=start, token_ids=ids, block_table=table, samples=True, is_prefill=True, fork_of=fork_of
    )


def states(*names: str) -> dict[str, TokenState]:
    return {name: TokenState(SamplingParams(prompt_len=3), (1, 2, 3)) for name in names}


def test_forks_are_retried_with_their_sibling_and_copies_are_made_once(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = StepPlan(
        step=1, generation=1, copies=((1, 2),),
        seqs=(
            seq("z", 0, (9, 9), (7,)), seq("a", 0, (1, 2, 3), (3,)), seq("b", 3, (), (3,), "a"),
            seq("y", 0, (8,), (5,)),
        ),
    )  # fmt: skip
    whole = runner.run(plan, states("z", "a", "b", "y"))
    tried = inject(
        monkeypatch, runner, lambda plan: RuntimeError("x") if len(plan.seqs) == 4 or holds(plan, "z") else None
    )
    attempt = run_step(runner, plan, states("z", "a", "b", "y"))
    assert [[each.request_id for each in plan.seqs] for plan in tried] == [
        ["z", "a", "b", "y"],
        ["z"],
        ["a", "b"],
        ["y"],
    ]
    assert [plan.copies for plan in tried] == [((1, 2),), (), (), ()]
    assert attempt.output.failed == {"z"}
    assert attempt.output.tokens == {name: whole.tokens[name] for name in "aby"}
    assert (attempt.problem is not None, attempt.all_failed) == (True, False)


def test_a_copy_that_fails_fails_all_without_a_retry(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = StepPlan(
        step=1, generation=1, copies=((1, 999),), seqs=(seq("a", 0, (1, 2), (3,)), seq("b", 0, (1, 2), (4,)))
    )
    tried = inject(monkeypatch, runner, lambda _: None)
    attempt = run_step(runner, plan, states("a", "b"))
    assert attempt.output.failed == {"a", "b"}
    assert attempt.all_failed
    assert len(tried) == 1
    assert "copying" in str(attempt.problem)


# One request's own faults


async def test_logits_that_are_not_numbers_fail_their_request_alone(
    looped: Looped, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = looped()
    real = made.runner.logits

    def poisoned(seqs: Any, also: Any = ()) -> torch.Tensor:
        logits = real(seqs, also).clone()
        for row, each in enumerate(seq for seq in seqs if seq.samples):
            if each.request_id == "bad" and each.start > 4:
                logits[row, 7] = math.nan
        return logits

    monkeypatch.setattr(made.runner, "logits", poisoned)
    await made.loop.submit([made.request("good"), made.request("bad"), made.request("other")])
    bad = end_of(await made.collect("bad"))
    assert (bad.reason, str(bad.problem)) == (FinishReason.ERROR, "the model's logits are not numbers for this request")
    assert bad.num_output_tokens == 3
    for name in ("good", "other"):
        assert end_of(await made.collect(name)).reason is FinishReason.LENGTH


@pytest.mark.parametrize("where", ["push", "finish"])
async def test_a_text_that_raises_fails_its_request_alone(
    looped: Looped, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Decoding that raises."""
    made = looped()

    def broken(*_: Any) -> str:
        raise ValueError("injected")

    bad = made.request("bad")
    monkeypatch.setattr(bad._text, where, broken)
    await made.loop.submit([made.request("good"), bad, made.request("other")])
    done = end_of(await made.collect("bad"))
    assert (done.reason, str(done.problem)) == (FinishReason.ERROR, "ValueError: injected")
    for name in ("good", "other"):
        assert end_of(await made.collect(name)).num_output_tokens == 8
    await made.idle()
    assert made.loop._live == {}
    assert made.loop.stats.blocks_free == made.loop.stats.blocks_total


async def test_sampling_that_raises_fails_its_request_alone(looped: Looped, monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()

    def broken(seed: str, index: int) -> float:
        if (seed, index) == ("bad", 3):
            raise RuntimeError("injected")
        return 0.4

    monkeypatch.setattr("headrace_engine.sampling.sampler.uniform", broken)
    names = ("good", "bad", "other")
    await made.loop.submit([made.request(name, temperature=1.0, seed=name) for name in names])
    bad = end_of(await made.collect("bad"))
    assert (bad.reason, str(bad.problem)) == (FinishReason.ERROR, "sampling failed: RuntimeError: injected")
    for name in ("good", "other"):
        assert end_of(await made.collect(name)).num_output_tokens == 8


# The thread dies


@pytest.mark.timeout(10)
async def test_a_dead_thread_fails_every_waiter_at_once(looped: Looped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running requests, calls waiting in the inbox, and later calls. No timer is involved."""
    made = looped()
    for at in range(3):
        await made.submit(f"{at}", max_tokens=400)

    def broken(_: float) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(made.scheduler, "plan", broken)
    waiting = [asyncio.ensure_future(made.submit(f"late {at}")) for at in range(5)]
    for at in range(3):
        done = end_of(await made.collect(f"{at}"))
        assert (done.reason, str(done.problem)) == (FinishReason.ERROR, "the engine stopped: RuntimeError: injected")
    for at, answer in enumerate(await asyncio.gather(*waiting, return_exceptions=True)):
        if answer is None:  # taken just before the thread died
            assert end_of(await made.collect(f"late {at}")).reason is FinishReason.ERROR
        else:
            assert isinstance(answer, EngineDeadError)
    for call in (made.submit("next"), made.loop.reconfigure({})):
        with pytest.raises(EngineDeadError, match="injected"):
            await call
    assert not made.loop.alive


async def test_waiters_are_failed_even_if_the_metrics_are_broken_too(
    looped: Looped, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = looped()
    await made.submit("a", max_tokens=400)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(made.metrics, "finished", broken)
    monkeypatch.setattr(made.metrics, "stats", broken)
    assert end_of(await made.collect("a")).reason is FinishReason.ERROR
    with pytest.raises(EngineDeadError):
        await made.submit("b")


async def test_stopping_ends_running_requests_and_refuses_new_ones(looped: Looped) -> None:
    made = looped()
    await made.submit("a", max_tokens=400)
    await made.loop.stop()
    assert end_of(await made.collect("a")).problem == RequestProblem("the engine is shutting down")
    with pytest.raises(EngineDeadError, match="shutting down"):
        await made.submit("b")
