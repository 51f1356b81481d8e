"""Outcomes computed from the visits: percentiles with bounds, waits, whole batches."""

import pytest
from modes_doubles import LONG, record, run

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import (
    Tail,
    make_cell,
    tail,
    throughput,
)
from headrace_client.load.client import ErrorKind


def test_a_percentile_among_requests_without_a_first_token_is_a_lower_bound() -> None:
    values = [(float(at), False) for at in range(1, 91)] + [(50.0, True)] * 10
    found = tail(values)
    assert (found.p50, found.beyond) == (50.0, ("p50", "p95", "p99", "max"))
    light = tail([(float(at), False) for at in range(1, 100)] + [(200.0, True)])
    assert light == Tail(100, 50.0, 95.0, 99.0, 200.0, ("max",))
    assert tail([]) is None


def test_unfinished_requests_count_with_their_wait_and_refused_ones_do_not() -> None:
    records = [record(0, 0.5), record(1, None, at=10.0, error=ErrorKind.UNFINISHED), record(2, None, error="http_503")]
    cell = make_cell([run(Mode.STATIC, Level.HIGH, records)], batch=4)
    assert cell.ttft.count == 2
    assert cell.ttft.max == 15.0  # given up at 25
    assert cell.errors == {"http_503": 1, "unfinished": 1}
    assert cell.overloaded


def test_short_and_long_prompts_are_told_apart() -> None:
    records = [record(0, 0.1), record(1, 5.0, kind=LONG)]
    cell = make_cell([run(Mode.CHUNKED, Level.LOW, records)], batch=4)
    assert (cell.ttft_short.max, cell.ttft_long.max, cell.ttft.count) == (0.1, 5.0, 2)
    assert cell.itl.count == 4


def test_static_batching_under_full_load_is_counted_in_whole_batches() -> None:
    # Batches of two that take 4 s each; the third has begun and would flatter the rate.
    records = [
        record(number, batch * 4.0 + 0.1, at=0.0, gaps=(0.5, 3.4 if number % 2 else 0.4))
        for batch in range(3)
        for number in (2 * batch, 2 * batch + 1)
    ]
    records[-1] = record(5, 8.1, at=0.0, gaps=(0.5,), error=ErrorKind.UNFINISHED, output_tokens=2)
    requests, tokens = throughput(run(Mode.STATIC, Level.FULL, records, end=9.0), batch=2)
    assert requests == pytest.approx(4 / 8.0)
    assert tokens == pytest.approx(12 / 8.0)
    threes = [record(n, n // 3 + 0.1, at=0.0, gaps=(0.4, 0.5)) for n in range(7)]
    assert throughput(run(Mode.STATIC, Level.FULL, threes, end=9.0), batch=3)[0] == pytest.approx(6 / 2)
    unfinished = [record(0, 0.1, at=0.0, error=ErrorKind.UNFINISHED, output_tokens=3)]
    assert throughput(run(Mode.STATIC, Level.FULL, unfinished, end=9.0), batch=2)[1] == pytest.approx(3 / 9)


def test_a_full_load_has_no_ttft_and_no_unfinished_errors() -> None:
    records = [record(0, 0.5), record(1, None, error=ErrorKind.UNFINISHED)]
    cell = make_cell([run(Mode.CHUNKED, Level.FULL, records)], batch=4)
    assert cell.ttft is None
    assert cell.errors == {}
    assert not cell.overloaded
