"""Who is let in, by memory and by priority, and what is said to those who never can be."""

import pytest

from headrace_core.scheduler.events import Admitted, Rejected, Request


def test_the_head_waits_where_the_peak_would_not_fit(driver) -> None:
    d = driver(num_blocks=13, block_size=1, expected=[8])
    d.submit("a", 2, 8)
    d.submit("b", 2, 8)
    assert d.step() == "a+2!", "both at their ends would hold 2 * (2 + 7) blocks, 12 there are"
    while d.scheduler.has_work:
        d.step()
    assert d.scheduler.stats().preemptions == 0


def test_the_head_is_let_in_when_enough_has_ended_by_the_time_it_peaks(driver) -> None:
    d = driver(num_blocks=13, block_size=1, expected=[8])
    d.submit("a", 2, 8)
    d.submit("b", 2, 8)
    assert d.steps(7) == ["a+2!", *["a1"] * 5, "a1 b+2!"], "a holds 8 and grows by 1 more: 2 + 8 + 2 * 1 = 12"


def test_with_nothing_running_a_request_is_let_in_whatever_is_expected(driver) -> None:
    d = driver(num_blocks=6, block_size=4, expected=[1000])
    d.submit("a", 12, 8)
    assert d.step() == "a+12!"


def test_nobody_passes_the_head_that_waits_for_the_peak(driver) -> None:
    d = driver(num_blocks=13, block_size=1, expected=[8])
    d.submit("a", 2, 8)
    d.submit("b", 5, 8)
    d.submit("c", 1, 1)
    assert d.steps(2) == ["a+2!", "a1"]
    assert d.scheduler.stats().waiting == 2


def test_outputs_that_end_early_teach_admission(driver) -> None:
    d = driver(num_blocks=13, block_size=1, max_num_seqs=8)
    for name in "abcd":
        d.submit(name, 2, 9, stop=[100])
    steps = []
    while d.scheduler.has_work:
        steps.append(d.step())
    assert steps == ["a+2!", "b+2! c+2! d+2!"], "the first is expected to use its max_tokens, the rest to end as it did"


def test_shared_blocks_count_once(driver) -> None:
    prompt = tuple(range(16))
    d = driver(num_blocks=8, expected=[1])
    d.submit("a", prompt, 4)
    d.step()
    d.submit("b", (*prompt, 1), 4)
    assert d.step() == "a1 b+1!", "5 blocks of 7 are in use; b needs one more and shares 4"


def test_free_blocks_that_are_hit_are_not_free_any_more(driver) -> None:
    prompt = tuple(range(16))
    d = driver(num_blocks=8, expected=[1])
    d.submit("a", prompt, 1)
    d.step()
    d.submit("y", 8, 3)
    d.step()
    d.submit("b", (*prompt, 1), 1)
    assert d.step() == "y1", "2 + 5 blocks are all there are: none would be left for the next one of y"


@pytest.mark.parametrize(
    ("prompt", "output", "advice"),
    [
        (90, 11, "max_tokens of at most 10 fits this prompt"),
        (99, 2, "max_tokens of at most 1 fits this prompt"),
        (100, 1, "at most 99 tokens and max_tokens 1 fit"),
        (500, 500, "at most 99 tokens and max_tokens 1 fit"),
    ],
)
def test_a_request_that_is_too_long_is_told_what_fits(driver, prompt: int, output: int, advice: str) -> None:
    d = driver(max_model_len=100)
    answer = d.submit("a", prompt, output)
    assert isinstance(answer, Rejected)
    assert answer.message.endswith(advice)
    number = int("".join(filter(str.isdigit, advice.split(" tokens and", maxsplit=1)[0])))
    fitting = (prompt, number) if "prompt" in advice else (number, 1)
    assert d.submit("b", *fitting) == Admitted("b")


@pytest.mark.parametrize(
    ("prompt", "output", "advice"),
    [(30, 12, "max_tokens of at most 11 fits this prompt"), (41, 1, "at most 40 tokens and max_tokens 1 fit")],
)
def test_a_request_that_the_whole_cache_cannot_hold_is_told_what_fits(
    driver, prompt: int, output: int, advice: str
) -> None:  # fmt: skip
    d = driver(num_blocks=11, block_size=4)
    answer = d.submit("a", prompt, output)
    assert isinstance(answer, Rejected)
    assert advice in answer.message
    fitting = (prompt, 11) if prompt == 30 else (40, 1)
    assert d.submit("b", *fitting) == Admitted("b")


def test_both_limits_are_heeded_in_what_fits(driver) -> None:
    d = driver(num_blocks=6, block_size=4, max_model_len=1000)
    answer = d.submit("a", 10, 2000)
    assert isinstance(answer, Rejected)
    assert "max_tokens of at most 11" in answer.message


def test_a_priority_beyond_what_ageing_can_count_is_the_drivers_mistake(driver) -> None:
    request = Request(request_id="a", prompt_token_ids=(1,), max_tokens=1, arrival=0.0, priority=2**60)
    with pytest.raises(ValueError, match="'a': priority must be within"):
        driver().scheduler.submit(request, 0.0)


def test_waiting_is_worth_a_level_of_priority_each_ageing_period(driver) -> None:
    d = driver(max_num_seqs=1, scheduling_policy="priority", priority_ageing_seconds=10)
    d.submit("low", 1, 1, priority=1)
    d.now += 8
    d.submit("soon", 1, 1, priority=0)  # 9 seconds later: still before it
    d.now += 8
    d.submit("late", 1, 1, priority=0)
    assert d.steps(3) == ["soon+1!", "low+1!", "late+1!"]


def test_without_ageing_priorities_are_strict(driver) -> None:
    d = driver(max_num_seqs=1, scheduling_policy="priority", priority_ageing_seconds=0)
    d.submit("low", 1, 1, priority=1)
    d.now += 1e6
    d.submit("high", 1, 1, priority=0)
    assert d.steps(2) == ["high+1!", "low+1!"]


def test_a_change_of_ageing_reorders_the_queue(driver) -> None:
    d = driver(max_num_seqs=1, scheduling_policy="priority", priority_ageing_seconds=0)
    d.submit("low", 1, 1, priority=1)
    d.now += 100
    d.submit("high", 1, 1, priority=0)
    d.scheduler.reconfigure({"priority_ageing_seconds": 10.0}, d.now)
    assert d.step() == "low+1!"


@pytest.mark.parametrize(("ageing", "served"), [(0, False), (20, True)])
def test_nobody_starves_under_a_steady_stream_of_higher_priority(driver, ageing: float, served: bool) -> None:
    d = driver(max_num_seqs=1, scheduling_policy="priority", priority_ageing_seconds=ageing)
    d.submit("low", 1, 1, priority=3)
    for index in range(60):
        d.submit(f"h{index}", 1, 1, priority=0)
        d.step()
    assert ("low" not in d.scheduler.state.live) is served


def test_order_by_priority_and_arrival_is_kept_across_preemption(driver) -> None:
    """A preempted request lost its place, and went behind those of the same priority that came after it."""
    d = driver(num_blocks=10, block_size=1, expected=[1], scheduling_policy="priority")
    d.submit("a", 3, 7, priority=1)
    d.submit("b", 3, 5, priority=2)
    d.steps(2)
    d.submit("d", 1, 1, priority=2)
    d.submit("c", 1, 1, priority=1)
    assert d.step() == "-b a1"
    assert [seq.request_id for seq in d.scheduler.state.waiting] == ["c", "b", "d"]


def test_who_has_aged_is_not_evicted_for_its_priority(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], scheduling_policy="priority", priority_ageing_seconds=10)
    d.submit("old", 3, 7, priority=1)
    d.now += 50
    d.submit("new", 3, 5, priority=0)
    assert d.steps(3) == ["old+3! new+3!", "old1 new1", "-new old1"]
