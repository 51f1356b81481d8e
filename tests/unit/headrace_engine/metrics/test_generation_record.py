"""The record of one generation, driven by hand."""

import pytest
from metrics_doubles import request, rows

from headrace_core.scheduler.events import FinishReason
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.outputs import RequestProblem


def test_a_record_is_of_its_request_and_holds_no_prompt() -> None:
    record = GenerationRecord.of(request("b", prompt=7, output=3, fork_of="a"), index=2, temperature=0.5, top_p=0.9)
    assert (record.id, record.prompt_tokens, record.max_tokens, record.fork_of) == ("b", 7, 3, "a")
    assert (record.index, record.temperature, record.top_p) == (2, 0.5, 0.9)
    assert record.ttft is record.started is record.reason is record.text is None


def test_tokens_are_counted_and_their_gaps_given_away_once() -> None:
    record = GenerationRecord.of(request())
    assert record.newest_gap is None
    for at in (1.0, 1.25, 2.25):
        record.token(at)
    assert (record.first_token, record.last_token, record.output_tokens) == (1.0, 2.25, 3)
    assert record.ttft == 1.0
    assert record.newest_gap == 1.0
    assert record.take_gaps() == [0.25, 1.0]
    assert record.take_gaps() == []
    assert (record.first_token, record.last_token, record.output_tokens) == (1.0, 2.25, 3), "what is kept is small"


def test_only_the_first_start_and_the_first_end_count() -> None:
    record = GenerationRecord.of(request())
    record.start(1.0, 4)
    record.start(2.0, 0)  # after a preemption
    assert (record.started, record.cached_tokens) == (1.0, 4)
    cut = RequestProblem("cut")
    record.end(FinishReason.ERROR, 3.0, cut)
    record.end(FinishReason.ABORT, 4.0)
    assert (record.reason, record.ended, record.problem) == (FinishReason.ERROR, 3.0, cut)


@pytest.mark.parametrize(
    ("steps", "again", "fresh"),
    [
        ([(0, 10)], [0], 10),
        ([(0, 6), (6, 4), (10, 1)], [0, 0, 0], 11),
        ([(8, 2)], [0], 2),  # the rest was in the cache
        ([(0, 10), (10, 1), (4, 8)], [0, 0, 7], 12),  # preempted; 4 were found in the cache
        ([(0, 10), (0, 5), (5, 6)], [0, 5, 5], 11),
    ],
)
def test_rows_that_ran_before_are_counted_separately(
    steps: list[tuple[int, int]], again: list[int], fresh: int
) -> None:
    record = GenerationRecord.of(request())
    assert [record.computed(rows("a", start, count)) for start, count in steps] == again
    assert record.fresh == fresh
