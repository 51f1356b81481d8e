"""Results computed from records: latencies, rates, goodput."""

import json
from dataclasses import replace

import pytest
from serve_doubles import failed, record

from headrace_bench.serve.result import ServeWindow, evaluate, is_good, to_json
from headrace_core.evidence.percentiles import Distribution
from headrace_core.evidence.slo import SloSet

WINDOW = ServeWindow(begin=2.0, end=12.0)


def test_only_what_was_planned_in_the_window_counts() -> None:
    result = evaluate([record(1.0, ttft=9.0), record(3.0), record(12.0), failed(5.0)], WINDOW)
    assert (result.requests, result.completed, result.warmup_requests) == (3, 2, 1)
    assert result.errors == {"http_503": 1}
    assert result.latency_seconds["ttft"] == Distribution(2, 0.2, 0.2, 0.2, 0.2)
    assert result.offered_per_second == 0.3


def test_failures_do_not_pull_latencies_and_do_count_as_misses() -> None:
    fast = [failed(3.0 + at / 10, ttft=0.001) for at in range(5)]
    result = evaluate([*[record(4.0, ttft=1.0, e2e=1.2) for _ in range(5)], *fast], WINDOW, slo=SloSet(ttft_seconds=2))
    assert result.latency_seconds["ttft"].p50 == 1.0
    assert (result.goodput.good, result.goodput.planned, result.goodput.attainment) == (5, 10, 0.5)
    assert result.goodput.low < 0.3
    assert result.goodput.high > 0.7
    assert result.goodput.per_second == 0.5


def test_rates_inside_the_window_count_all_answers_that_came_inside() -> None:
    early = record(1.9, ttft=0.2, gaps=(0.1, 0.1), e2e=0.4)  # asked before, answered inside
    late = record(11.9, ttft=0.2, gaps=(0.1, 0.1), e2e=0.4)  # asked inside, answered after
    result = evaluate([early, late], WINDOW)
    assert result.in_window.requests == pytest.approx(0.1)
    assert result.in_window.tokens == pytest.approx(0.3)
    assert result.until_last.seconds == pytest.approx(10.3)
    assert result.until_last.tokens == pytest.approx(3 / 10.3)


def test_a_load_all_at_once_has_no_window_rates() -> None:
    result = evaluate([record(0.0), record(0.0)], ServeWindow(begin=0.0, end=0.0), slo=SloSet(e2e_seconds=1))
    assert result.offered_per_second is None
    assert result.in_window is None
    assert result.until_last.requests == pytest.approx(5.0)
    assert result.goodput.per_second == pytest.approx(5.0)
    json.dumps(to_json(result), allow_nan=False)


def test_tpot_counts_tokens_and_itl_chunks() -> None:
    bundled = record(output_tokens=9, wanted_tokens=9, gaps=(0.4, 0.4), e2e=1.0)
    result = evaluate([bundled], WINDOW)
    assert result.latency_seconds["tpot"].p50 == pytest.approx(0.1)
    assert result.latency_seconds["itl"].p50 == 0.4
    assert result.latency_seconds["worst_gap"].count == 1
    assert result.lengths.chunks_per_token == pytest.approx(1 / 3)
    slo = SloSet(tpot_seconds=0.2)
    assert is_good(bundled, slo)
    assert not is_good(replace(bundled, counted=False), slo), "uncounted, each chunk is a token"


def test_short_answers_and_cached_prompts_are_told() -> None:
    lengths = evaluate([record(wanted_tokens=5, cached_tokens=5), record(cached_tokens=0)], WINDOW).lengths
    assert lengths.short_answers == 1
    assert lengths.cached == 0.25
    assert evaluate([record(counted=False, wanted_tokens=5)], WINDOW).lengths.short_answers == 0, "nobody counted"


def test_nothing_answered_is_a_result_too() -> None:
    result = evaluate([failed(3.0, detail="full")], WINDOW, slo=SloSet(ttft_seconds=1))
    assert result.latency_seconds == {}
    assert result.lengths is None
    assert result.first_error == "http_503: full"
    assert result.goodput.attainment == 0
    json.dumps(to_json(result), allow_nan=False)
