"""Answers to the driver: rejections, endings, misuse, reconfiguration, statistics."""

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    Admitted,
    ChangeRefused,
    Finished,
    FinishReason,
    Reconfigured,
    Rejected,
    RejectReason,
    Request,
    Started,
    StepResult,
    Token,
)
from headrace_core.scheduler.scheduler import Scheduler, SchedulerMisuseError


@pytest.mark.parametrize(
    ("prompt", "output", "reason", "numbers"),
    [
        (0, 5, RejectReason.EMPTY_PROMPT, ("0", "1")),
        (90, 11, RejectReason.TOO_LONG, ("101", "100")),
        (30, 12, RejectReason.NEVER_FITS, ("11 KV blocks", "has 10")),
    ],
)
def test_rejections_say_both_numbers(driver, prompt: int, output: int, reason: RejectReason, numbers) -> None:
    d = driver(num_blocks=11, block_size=4, max_model_len=100)
    answer = d.submit("a", prompt, output)
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.retry_after) == (reason, None)
    assert all(number in answer.message for number in numbers), answer.message
    assert not d.scheduler.has_work


def test_the_largest_that_fits_is_admitted(driver) -> None:
    d = driver(num_blocks=11, block_size=4, max_model_len=41)
    assert d.submit("a", 30, 11) == Admitted("a"), "40 positions in 40: the last token is never fed back"


def test_an_id_is_free_again_when_its_request_ended(driver) -> None:
    d = driver()
    d.submit("a", 1, 1)
    answer = d.submit("a", 1, 1)
    assert isinstance(answer, Rejected)
    assert answer.reason is RejectReason.DUPLICATE_ID
    d.step()
    assert d.submit("a", 1, 1) == Admitted("a")


def test_queue_length_limits_those_that_find_no_place(driver) -> None:
    d = driver(max_num_seqs=1, max_queue_len=1)
    assert [type(d.submit(name, 1)) for name in "abc"] == [Admitted, Admitted, Rejected]
    d.step()
    assert isinstance(d.submit("d", 1), Rejected), "the same before and after the first step"
    d = driver(max_num_seqs=1, max_queue_len=0)
    assert [type(d.submit(name, 1)) for name in "ab"] == [Admitted, Rejected]


def test_a_running_static_batch_has_no_free_places(driver) -> None:
    d = driver(batching="static", max_num_seqs=8, max_queue_len=1)
    d.submit("a", 1)
    d.step()
    assert [type(d.submit(name, 1)) for name in "bc"] == [Admitted, Rejected]


def test_queue_tokens_limit_and_an_empty_queue_takes_any_prompt(driver) -> None:
    d = driver(max_queue_tokens=10)
    assert isinstance(d.submit("a", 20), Admitted)
    answer = d.submit("b", 1)
    assert isinstance(answer, Rejected)
    assert "20 tokens wait" in answer.message
    assert "max_queue_tokens 10" in answer.message


def test_retry_after_follows_the_observed_rate(driver) -> None:
    d = driver(max_num_seqs=1, max_queue_len=10)
    for index in range(8):
        d.submit(f"a{index}", 1, 1)
    assert d.submit("never", 0).retry_after is None
    for _ in range(8):
        d.step()  # one request ends every two seconds
    for index in range(11):
        d.submit(f"b{index}", 1, 1)
    answer = d.submit("c", 1)
    assert isinstance(answer, Rejected)
    assert answer.retry_after == pytest.approx(26 / 7)
    assert "10" in answer.message
    d.now += 1e6
    assert d.submit("c", 1).retry_after == 60
    d.scheduler.reconfigure({"decode_ratio": 0.5}, d.now)
    assert d.submit("c", 1).retry_after == 1, "another config has another rate"


@pytest.mark.parametrize(("max_tokens", "arrival"), [(0, 0.0), (-1, 0.0), (1, float("nan")), (1, float("inf"))])
def test_what_the_driver_must_check_raises(driver, max_tokens: int, arrival: float) -> None:
    request = Request(request_id="a", prompt_token_ids=(1,), max_tokens=max_tokens, arrival=arrival)
    with pytest.raises(ValueError, match="'a'"):
        driver().scheduler.submit(request, 0.0)


def test_tokens_then_finished_by_length(driver) -> None:
    d = driver()
    d.submit("a", 2, 2)
    assert d.commit(d.plan()) == (Started("a", 2.0), Token("a", 100, 0))
    assert d.commit(d.plan()) == (Token("a", 100, 1), Finished("a", FinishReason.LENGTH, 2))


def test_a_stop_token_is_told_and_ends_the_request_even_as_the_last_one(driver) -> None:
    d = driver()
    d.submit("a", 2, 1, stop=[100])
    assert d.commit(d.plan())[1:] == (Token("a", 100, 0), Finished("a", FinishReason.STOP, 1))


def test_a_failed_forward_ends_only_the_requests_named(driver) -> None:
    d = driver()
    d.submit("a", 2)
    d.submit("b", 2)
    outcomes = d.commit(d.plan(), failed=["a"])
    assert Finished("a", FinishReason.ERROR, 0) in outcomes
    assert d.step() == "b1"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_frees_at_once_and_once(driver, steps: int) -> None:
    d = driver()
    d.submit("a", 40)
    d.steps(steps)
    assert d.scheduler.abort("a", 9.0) == Finished("a", FinishReason.ABORT, max(0, steps - 1))
    assert d.scheduler.abort("a", 9.0) is None
    assert d.scheduler.abort("nobody", 9.0) is None
    assert (d.scheduler.has_work, d.scheduler.stats().kv_usage, d.scheduler.plan(9.0)) == (False, 0.0, None)


def test_commit_ignores_who_ended_since_the_plan_even_if_the_id_came_back(driver) -> None:
    d = driver()
    d.submit("a", 4)
    d.submit("b", 4)
    plan = d.plan()
    d.scheduler.finish("a", FinishReason.STOP, d.now)
    invariants.check(d.scheduler)
    assert d.submit("a", 7) == Admitted("a")
    assert d.commit(plan, failed=["a"]) == (Started("b", 3.0), Token("b", 100, 0))
    assert d.step() == "b1 a+7!"


def test_an_evicted_request_that_is_aborted_before_the_commit_is_not_told(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1])
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    d.steps(2)
    plan = d.plan()
    assert plan.preempted == ("b",)
    d.scheduler.abort("b", d.now)
    assert d.commit(plan) == (Token("a", 100, 2),)


def test_the_driver_may_not_plan_twice_or_commit_what_is_not_in_flight(driver) -> None:
    d = driver()
    d.submit("a", 2)
    plan = d.plan()
    with pytest.raises(SchedulerMisuseError, match="step 1 is in flight"):
        d.scheduler.plan(0.0)
    with pytest.raises(SchedulerMisuseError, match="no token for 'a'"):
        d.scheduler.commit(plan, StepResult(tokens={}), 0.0)
    d.commit(plan)
    with pytest.raises(SchedulerMisuseError, match="step 1 is not in flight"):
        d.commit(plan)
    d.plan()
    with pytest.raises(SchedulerMisuseError, match="step 1 is not in flight"):
        d.commit(plan)


def test_reconfigure_answers(driver) -> None:
    d = driver()
    scheduler = d.scheduler
    same = scheduler.reconfigure({"max_num_seqs": 8, "decode_ratio": 0}, 0.0)
    assert same == Reconfigured(1, scheduler.config)
    assert scheduler.reconfigure({"max_num_seqs": 4}, 0.0) == Reconfigured(2, scheduler.config)
    refused = scheduler.reconfigure({"max_num_seqs": 9, "dtype": "float32", "decode_ratio": 2}, 0.0)
    assert isinstance(refused, ChangeRefused)
    assert {problem.knob for problem in refused.problems} == {"dtype", "decode_ratio"}
    above = scheduler.reconfigure({"max_num_seqs": 9, "prefill_chunk_size": 1}, 0.0)
    assert isinstance(above, ChangeRefused)
    assert "exceeds the boot value 8" in above.problems[0].message
    assert (scheduler.generation, scheduler.config.max_num_seqs, scheduler.config.chunk) == (2, 4, 32)


def test_stats_and_repr_tell_the_state(driver) -> None:
    d = driver(num_blocks=11, max_num_seqs=2, enable_prefix_caching=False)
    for name in "abc":
        d.submit(name, 10, 7)
    d.step()
    plan = d.plan()
    stats = d.scheduler.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens, stats.steps) == (2, 1, 10, 1)
    assert (stats.blocks_total, stats.blocks_free, stats.kv_usage) == (10, 4, 0.6)
    assert repr(d.scheduler) == (
        "<Scheduler generation=1 steps=1 in_flight=step 2 running=2 (2 decode, 0 prefill) waiting=1 (10 tokens) "
        "blocks=6/10>"
    )
    d.commit(plan)
    stats = d.scheduler.stats()
    assert (stats.tokens_prefill, stats.tokens_decode, stats.steps, stats.generation) == (20, 2, 2, 1)
    assert "a decode 11/12 tokens 3 blocks" in repr(d.scheduler.state.live["a"])


def test_a_scheduler_needs_room_for_a_prompt_and_a_token() -> None:
    with pytest.raises(ValueError, match="at least 2, got 1"):
        Scheduler(resolve({}), num_blocks=8, max_model_len=1)


def test_invariants_name_what_is_wrong(driver) -> None:
    d = driver()
    d.submit("a", 6)
    d.submit("b", 6)
    d.step()
    a, b = d.scheduler.state.running.values()
    a.blocks, kept = b.blocks, a.blocks
    with pytest.raises(invariants.InvariantError, match=r"neither free nor held.*holder counts are wrong"):
        invariants.check(d.scheduler)
    a.blocks = kept
    d.scheduler.state.waiting.push(b)
    with pytest.raises(invariants.InvariantError, match="'b' is in 2 places"):
        invariants.check(d.scheduler)


def test_long_queues_survive_many_aborts(driver) -> None:
    d = driver(max_num_seqs=1)
    for index in range(500):
        d.submit(f"r{index}", 1, 1)
    for index in range(499):
        d.scheduler.abort(f"r{index}", d.now)
    invariants.check(d.scheduler)
    assert d.step() == "r499+1!"
