"""Eviction, recomputation and admission when KV blocks are short. Blocks have 1 token where not said otherwise.

`expected` is the output length that admission counts on: with less than comes, too many are let in.
"""

import pytest

from headrace_core.scheduler.events import Preempted, Started

# However much has been generated, few tokens more are expected: half of those that got so far ended with the next.
SHORT = [length for length in range(1, 10) for _ in range(2 ** (9 - length))]


def test_the_newest_is_evicted_and_comes_back_at_the_front(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1])
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    assert d.steps(2) == ["a+3! b+3!", "a1 b1"]
    d.submit("c", 1, 1)
    plan = d.plan()
    assert (plan.preempted, [row.request_id for row in plan.seqs]) == (("b",), ["a"])
    assert d.commit(plan)[0] == Preempted("b", 4)
    assert [seq.request_id for seq in d.scheduler.state.waiting] == ["b", "c"]
    stats = d.scheduler.stats()
    assert (stats.preemptions, stats.tokens_recomputed, stats.waiting_tokens) == (1, 0, 6)


def test_an_evicted_request_goes_before_those_that_came_earlier(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], max_num_seqs=2, scheduling_policy="priority")
    d.submit("w", 1, 1, priority=9)
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    assert d.steps(2) == ["a+3! b+3!", "a1 b1"]
    d.scheduler.reconfigure({"scheduling_policy": "fcfs"}, d.now)
    assert d.step() == "-b a1"
    assert [seq.request_id for seq in d.scheduler.state.waiting] == ["b", "w"]


def test_recomputation_is_prefill_of_prompt_and_output_and_is_counted(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], enable_prefix_caching=False)
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    log = []
    while d.scheduler.has_work:
        log.append(d.step())
    assert log == ["a+3! b+3!", "a1 b1", "-b a1", "a1", "a1", "a1", "a1", "b+5!", "b1", "b1"]
    assert d.scheduler.stats().tokens_recomputed == 4
    assert d.scheduler.stats().tokens_prefill == 3 + 3 + 5


def test_started_is_told_once_whatever_happens_later(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1])
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    started = []
    while d.scheduler.has_work:
        started += [outcome for outcome in d.commit(d.plan()) if isinstance(outcome, Started)]
    assert started == [Started("a", 3.0), Started("b", 3.0)]


def test_the_lowest_priority_is_evicted_whatever_its_age(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], scheduling_policy="priority")
    d.submit("a", 3, 5, priority=9)
    d.submit("b", 3, 7, priority=1)
    assert d.steps(3) == ["b+3! a+3!", "b1 a1", "-a b1"]


@pytest.mark.parametrize(("preemptible", "fifth"), [(True, "-b a1"), (False, "-a b+1!")])
def test_a_prefill_is_evicted_only_if_preemptible(driver, preemptible: bool, fifth: str) -> None:
    d = driver(num_blocks=13, block_size=1, expected=[2], prefill_chunk_size=4, preemptible=preemptible)
    d.submit("a", 1, 11)
    first = d.step()
    d.submit("b", 9, 2)
    assert [first, *d.steps(4)] == ["a+1!", "a1 b+4", "a1 b+4", "a1", fifth]
    while d.scheduler.has_work:
        d.step()


def test_whoever_was_evicted_makes_progress_before_it_is_evicted_again(driver) -> None:
    d = driver(num_blocks=14, block_size=1, expected=SHORT, prefill_chunk_size=2)
    for name in "abcd":
        d.submit(name, 2, 10)
    outputs_at_eviction: dict[str, list[int]] = {}
    while d.scheduler.has_work:
        live = {name: seq.num_output_tokens for name, seq in d.scheduler.state.live.items()}
        plan = d.plan()
        for name in plan.preempted:
            outputs_at_eviction.setdefault(name, []).append(live[name])
        d.commit(plan)
    assert any(len(counts) > 1 for counts in outputs_at_eviction.values())
    for counts in outputs_at_eviction.values():
        assert counts == sorted(set(counts))


def test_a_lone_request_that_fits_exactly_finishes(driver) -> None:
    d = driver(num_blocks=5, block_size=2, prefill_chunk_size=3)
    d.submit("a", 5, 4)
    while d.scheduler.has_work:
        d.step()
    assert d.scheduler.stats().preemptions == 0


def test_admission_leaves_a_block_for_each_running_sequence(driver) -> None:
    d = driver(num_blocks=9, block_size=4)
    d.submit("a", 4, 8)
    d.step()
    d.submit("b", 24, 1)
    assert d.step() == "a1", "7 free, b needs 6 and a 1 now: none would be left for a's next"
    d = driver(num_blocks=10, block_size=4)
    d.submit("a", 4, 8)
    d.step()
    d.submit("b", 24, 1)
    assert d.step() == "a1 b+24!"


def test_admission_counts_what_running_prefills_are_still_owed(driver) -> None:
    d = driver(num_blocks=13, block_size=1, prefill_chunk_size=4)
    d.submit("a", 8, 1)
    d.submit("b", 5, 1)
    assert d.steps(2) == ["a+4", "a+4!"], "b would fit in the 8 free blocks, of which a still needs 4"
    assert d.step() == "b+4"


def test_nobody_passes_the_head_of_the_queue_that_waits_for_memory(driver) -> None:
    d = driver(num_blocks=9, block_size=4)
    d.submit("a", 8, 3)
    d.step()
    d.submit("b", 28, 2)
    d.submit("c", 1, 1)
    assert d.steps(3) == ["a1", "a1", "b+28!"]


def test_a_sequence_holds_no_more_blocks_than_its_planned_positions_need(driver) -> None:
    d = driver(block_size=4, prefill_chunk_size=6)
    d.submit("a", 12, 10)
    tables = [len(d.plan().seqs[0].block_table)]
    for _ in range(3):
        plan = d.scheduler.in_flight
        assert plan is not None
        d.commit(plan)
        tables.append(len(d.plan().seqs[0].block_table))
    assert tables == [2, 3, 4, 4]
