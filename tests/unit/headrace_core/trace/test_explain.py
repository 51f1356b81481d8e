"""What is told of a request. Time is the number of calls: each submit, plan and commit takes a second."""

import gc
import json

import pytest

from headrace_core.scheduler.events import FinishReason
from headrace_core.scheduler.sequence import Sequence
from headrace_core.scheduler.wait_cause import WaitCause
from headrace_core.trace.explain import Eviction, PrefillChunk, Wait
from headrace_core.trace.history import KEPT_ENDED, KEPT_EVENTS


def told(d, name: str):
    explanation = d.history.explain(name, d.now)
    assert explanation is not None
    return explanation


def waits(d, name: str) -> dict[str, tuple[int, float]]:
    return {str(wait.cause): (wait.steps, wait.seconds) for wait in told(d, name).waits}


def test_a_request_from_its_arrival_to_its_end(driver) -> None:
    d = driver(prefill_chunk_size=4)
    d.submit("a", 6, 2)
    d.steps(2)
    life = told(d, "a")
    assert (life.state, life.arrival, life.started, life.first_token, life.ended) == ("decode", 1.0, 2.0, 5.0, None)
    assert life.chunks == (PrefillChunk(1, 2.0, 0, 4), PrefillChunk(2, 4.0, 4, 2))
    assert (life.prompt_tokens, life.cached_tokens, life.output_tokens, life.max_tokens) == (6, 0, 1, 2)
    d.step()
    life = told(d, "a")
    assert (life.state, life.ended, life.output_tokens) == ("length", 7.0, 2)
    assert d.history.explain("nobody", d.now) is None


def test_a_request_waits_for_the_step_that_runs_when_it_comes(driver) -> None:
    d = driver()
    d.submit("a", 4)
    plan = d.plan()
    d.submit("b", 4)
    d.commit(plan)
    d.step()
    assert waits(d, "b") == {"next_step": (0, 2.0)}


@pytest.mark.parametrize(
    ("cause", "knobs", "first"),
    [
        ("sequence_cap", {"max_num_seqs": 1}, 4),
        ("token_budget", {"max_num_batched_tokens": 8}, 17),
        ("kv_blocks", {"num_blocks": 7, "expected": [1]}, 13),
        ("kv_peak", {"num_blocks": 8, "expected": [12]}, 4),
        ("partial_prefill_limit", {"max_num_partial_prefills": 1, "prefill_chunk_size": 4}, 12),
        ("long_prefill_limit", {"long_prefill_token_threshold": 5, "prefill_chunk_size": 4}, 12),
        ("static_batch", {"batching": "static"}, 4),
        ("prefill_of_others", {"preemptible": False, "prefill_chunk_size": 4}, 12),
    ],
)
def test_the_head_of_the_queue_knows_what_it_waits_for_and_the_others_that_they_stand_behind(
    driver, cause: str, knobs: dict[str, object], first: int
) -> None:  # fmt: skip
    d = driver(**knobs)
    d.submit("a", first, 12)
    if cause in ("static_batch", "kv_peak"):
        d.step()
    d.submit("b", 8, 12)
    d.submit("c", 8, 12)
    d.steps(2)
    life = told(d, "b")
    assert life.state == "waiting"
    assert dict(waits(d, "b"))[cause] == (2, 3.0), "planned, committed, planned, and the commit after that"
    behind = told(d, "c")
    assert waits(d, "c")["queue_order"] == (2, 3.0)
    assert behind.held_up_by == (Wait(WaitCause(cause), 2, 3.0),)


def test_a_long_prompt_that_short_ones_pass_knows_why(driver) -> None:
    d = driver(long_prefill_token_threshold=5, prefill_chunk_size=4)
    d.submit("a", 12)
    d.submit("long", 12)
    d.submit("short", 3)
    assert d.step() == "a+4 short+3!"
    assert waits(d, "long") == {"next_step": (0, 2.0), "long_prefill_limit": (1, 1.0)}


def test_a_fork_waits_for_its_sibling(driver) -> None:
    d = driver(prefill_chunk_size=4)
    d.submit("a", range(6))
    d.submit("b", range(6), fork_of="a")
    d.steps(2)
    life = told(d, "b")
    assert waits(d, "b") == {"next_step": (0, 1.0), "sibling": (1, 2.0)}
    assert (life.fork_of, life.cached_tokens, life.chunks, life.first_token) == ("a", 6, (), 6.0)


def test_whoever_becomes_the_head_waits_for_something_else_from_then_on(driver) -> None:
    d = driver(max_num_seqs=1)
    d.submit("a", 4, 2)
    d.submit("b", 4, 2)
    d.submit("c", 4, 2)
    d.steps(3)
    assert waits(d, "c") == {"next_step": (0, 1.0), "queue_order": (2, 4.0), "sequence_cap": (1, 1.0)}
    assert told(d, "c").held_up_by == (Wait(WaitCause.SEQUENCE_CAP, 2, 4.0),)


def test_preemptions_are_told_with_their_reason_and_what_followed(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], enable_prefix_caching=False)
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    d.steps(8)
    life = told(d, "b")
    assert life.preemptions == (Eviction(7.0, 4, "a"),)
    assert life.stalls == (Wait(WaitCause.AFTER_PREEMPTION, 5, 10.0),)
    assert life.chunks == (PrefillChunk(1, 3.0, 0, 3), PrefillChunk(8, 17.0, 0, 5))
    assert sum(wait.seconds for wait in life.waits) == life.started - life.arrival


def test_a_prefill_that_is_passed_over_knows_it(driver) -> None:
    d = driver(max_num_batched_tokens=8, prefill_chunk_size=8, max_num_seqs=8)
    d.submit("a", 12)
    d.step()
    d.submit("b", 12)
    assert d.step() == "a+4! b+4"
    d.scheduler.reconfigure({"max_num_seqs": 1, "max_num_batched_tokens": 1, "prefill_chunk_size": 1}, d.now)
    assert d.step() == "a1"
    assert told(d, "b").stalls == (Wait(WaitCause.TOKEN_BUDGET, 1, 1.0),)


def test_who_is_aborted_while_it_waits_is_told_up_to_then(driver) -> None:
    d = driver(max_num_seqs=1)
    d.submit("a", 4)
    d.submit("b", 4)
    d.steps(2)
    d.now += 5
    d.scheduler.abort("b", d.now)
    d.now += 100
    life = told(d, "b")
    assert (life.state, life.ended, life.started) == ("abort", 11.0, None)
    assert sum(wait.seconds for wait in life.waits) == life.ended - life.arrival


def test_the_last_that_ended_are_remembered_and_the_newest_of_an_id(driver) -> None:
    d = driver(num_blocks=10)
    for index in range(KEPT_ENDED + 2):
        d.submit(f"r{index}", 1, 1)
        d.step()
    assert d.history.explain("r1", d.now) is None
    assert told(d, "r2").state == "length"
    d.submit("r2", 3, 9)
    assert told(d, "r2").state == "waiting"
    d.step()
    d.scheduler.finish("r2", FinishReason.STOP, d.now)
    assert (told(d, "r2").state, told(d, "r2").prompt_tokens) == ("stop", 3)


def test_a_very_long_prefill_keeps_its_newest_chunks(driver) -> None:
    d = driver(prefill_chunk_size=1)
    d.submit("a", KEPT_EVENTS + 10)
    d.steps(KEPT_EVENTS + 10)
    life = told(d, "a")
    assert (life.num_chunks, len(life.chunks), life.chunks[0].start) == (KEPT_EVENTS + 10, KEPT_EVENTS, 10)


def test_an_ended_request_does_not_keep_its_tokens(driver) -> None:
    d = driver()
    d.submit("let go", 4, 1)
    d.step()
    gc.collect()
    assert told(d, "let go").state == "length"
    assert not [item for item in gc.get_objects() if type(item) is Sequence and item.request_id == "let go"]


def test_an_explanation_is_json_and_sentences(driver) -> None:
    d = driver(num_blocks=10, block_size=1, expected=[1], max_num_seqs=2)
    d.submit("a", 3, 7)
    d.submit("b", 3, 5)
    d.submit("c", range(3), 2)
    d.steps(4)
    assert json.loads(json.dumps(told(d, "b").to_dict())) == told(d, "b").to_dict()
    assert told(d, "b").to_dict()["stalls"] == [{"cause": "after_preemption", "steps": 2, "seconds": 3.0}]
    assert told(d, "a").sentences() == (
        "Request a has generated 4 tokens of at most 7, 10.00 s after it arrived.",
        "Its first chunk came after 3.00 s: it waited 3.00 s for the step that was running when it arrived.",
        "Its first token came 1.00 s and 1 chunk later.",
    )
    assert told(d, "b").sentences()[2:] == (
        "Its first token came 1.00 s and 1 chunk later.",
        "6.00 s after it arrived it was preempted to free KV blocks for a; the KV of 4 tokens was lost.",
        "After its first chunk it waited 3.00 s to start again after it was preempted.",
    )
    assert told(d, "c").sentences() == (
        "Request c waits, 8.00 s after it arrived.",
        (
            "It has not started after 8.00 s: it waited 4.00 s for a place among max_num_seqs, 3.00 s behind other "
            "requests in the queue, 1.00 s for the step that was running when it arrived."
        ),
        "Those ahead of it waited 3.00 s for free KV blocks.",
    )
    d.submit("d", range(3), 1)
    while d.scheduler.has_work:
        d.step()
    assert told(d, "d").sentences()[0].startswith("Request d ended (length) ")
    d.submit("e", (*range(3), 4, 5), 1)
    d.submit("f", (*range(3), 4, 5), 2, fork_of="e")
    d.step()
    assert "Of its 5 prompt tokens, 3 came from the prefix cache." in told(d, "e").sentences()
    assert "Its 5 prompt tokens were computed with those of e." in told(d, "f").sentences()


def test_every_cause_has_words() -> None:
    from headrace_core.trace.explain import PHRASES

    assert set(PHRASES) == set(WaitCause)


def test_a_long_prompt_that_came_after_the_head_stands_behind_it(driver) -> None:
    d = driver(long_prefill_token_threshold=5, prefill_chunk_size=4, max_num_seqs=1)
    d.submit("a", 12)
    d.submit("short", 3)
    d.submit("long", 12)
    assert d.step() == "a+4"
    assert waits(d, "long") == {"next_step": (0, 1.0), "queue_order": (1, 1.0)}
