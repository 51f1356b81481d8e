"""What is made of records: latencies, rates, goodput, steadiness, the client's own limits, two runs compared."""

import io
import json
import random
from dataclasses import replace

import pytest
from rich.console import Console

from headrace_bench.errors import BenchError
from headrace_bench.serve.compare import bootstrap_ratio, compare, comparison_table, read_result
from headrace_bench.serve.result import ServeWindow, evaluate, is_good, to_json
from headrace_bench.serve.steady import Trend, steadiness
from headrace_bench.serve.watch import Health, Watch, client_limits, watching
from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_core.evidence.percentiles import Distribution
from headrace_core.evidence.slo import SloSet
from headrace_core.workload.plans import RequestKind

WINDOW = ServeWindow(begin=2.0, end=12.0)


def record(at: float = 3.0, **more: object) -> RequestRecord:
    base = {
        "planned_at": at, "sent_at": at, "kind": RequestKind.SHORT, "prompt_tokens": 10, "output_tokens": 3,
        "ttft": 0.2, "gaps": (0.1, 0.1), "e2e": 0.4, "wanted_tokens": 3, "counted": True,
    }  # fmt: skip
    return RequestRecord(**base | more)


def failed(at: float = 3.0, error: str = "http_503", **more: object) -> RequestRecord:
    return record(at, **{"error": error, "ttft": None, "gaps": (), "e2e": None, "output_tokens": 0} | more)


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


def test_rates_inside_the_window_count_what_came_inside_whoever_asked() -> None:
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


def queue(rate: float, service: float, *, seconds: float = 60.0, seed: int = 1) -> list[RequestRecord]:
    """One server, first come first served."""
    rng, free, at, records = random.Random(seed), 0.0, 0.0, []
    while (at := at + rng.expovariate(rate)) < seconds:
        free = max(free, at) + rng.uniform(0.5, 1.5) * service
        records.append(record(at, ttft=free - at, gaps=(), e2e=free - at))
    return records


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_queue_is_an_overload_and_a_light_load_is_none(seed: int) -> None:
    over = steadiness(queue(4.0, 0.4, seed=seed), begin=0.0, end=60.0)
    assert over.trend is Trend.OVERLOADED
    assert over.in_flight > 0.5
    light = steadiness(queue(4.0, 0.05, seed=seed), begin=0.0, end=60.0)
    assert light.trend is Trend.STEADY


def test_a_queue_that_drains_is_still_warming_up() -> None:
    falling = [record(at / 2, ttft=10.0 - at / 15, gaps=(), e2e=10.0 - at / 15) for at in range(120)]
    falling = [item for item in falling if item.planned_at < 30 or item.planned_at % 1 == 0]
    assert steadiness(falling, begin=0.0, end=60.0).trend is Trend.WARMING


def test_few_requests_tell_nothing() -> None:
    assert steadiness(queue(0.3, 4.0), begin=0.0, end=60.0).trend is Trend.UNKNOWN


def test_unfinished_requests_stay_under_way_to_the_end() -> None:
    stuck = [failed(at / 2, error=ErrorKind.UNFINISHED) for at in range(120)]
    answered = [record(at / 2, ttft=0.1 + at / 40) for at in range(120)]
    assert steadiness([*stuck, *answered], begin=0.0, end=60.0).trend is Trend.OVERLOADED


def lag(seconds: float) -> Distribution:
    return Distribution(100, seconds, seconds, seconds, seconds)


HEALTHY = Health(seconds=10.0, cpu_share=0.3, loop_lag=lag(0.001))


def test_a_healthy_client_is_no_limit() -> None:
    assert client_limits(HEALTHY, [record()]) == ()


@pytest.mark.parametrize(
    ("health", "records", "words"),
    [
        (replace(HEALTHY, cpu_share=0.95), [record()], "95% of the one core"),
        (replace(HEALTHY, loop_lag=lag(0.03)), [record()], "event loop was up to 30 ms late"),
        (HEALTHY, [record(sent_at=3.5)], "sent within 500 ms of their time; 20 ms is tolerable"),
        (HEALTHY, [record(), failed(error=ErrorKind.CLIENT_FULL)], "1 requests were not sent"),
    ],
)
def test_a_client_at_its_limit_is_told_by_reason(health: Health, records: list, words: str) -> None:
    (reason,) = client_limits(health, records)
    assert words in reason


def test_what_is_late_is_held_against_what_is_measured() -> None:
    slow = [record(ttft=30.0, gaps=(5.0, 5.0), e2e=40.0, sent_at=4.0)]
    assert client_limits(replace(HEALTHY, loop_lag=lag(0.2)), slow) == (), "a second on thirty bends nothing"


async def test_a_loop_that_hangs_is_seen_as_each_beat_would_have_seen_it() -> None:
    import asyncio
    import time

    async with watching() as watch:
        await asyncio.sleep(0.05)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        health = watch.health()
    assert isinstance(watch, Watch)
    assert health.loop_lag.max >= 0.15
    assert sum(late > 0.02 for late in watch.lags) >= 5, "ten beats were due in the hanging"
    assert health.seconds >= 0.3


def result_file(scale: float, *, count: int = 60, seed: int = 0, **load: object) -> dict:
    rng = random.Random(seed)
    samples = []
    for number in range(count):
        base = rng.uniform(0.5, 1.5)
        samples.append(
            {"number": number, "ttft": base * scale, "tpot": 0.02, "worst_gap": 0.05, "e2e": base + 1, "tokens": 20,
             "error": None}
        )  # fmt: skip
    return {
        "schema": "headrace.bench.serve/1", "url": "u", "model": "m", "mode": "open", "seed": 0,
        "load": {"rate": 2.0, "json": "x"} | load, "samples": samples, "output_tokens_per_second": 100.0 * scale,
        "client": {"limited": False}, "errors": {}, "requests": count, "environment": {"cpu": "c", "cores": 2},
    }  # fmt: skip


def test_the_same_plan_is_compared_in_pairs_and_an_effect_is_sharp() -> None:
    compared = compare(result_file(1.0), result_file(0.5))
    assert compared.paired
    ratio = compared.ratios["ttft_p50"]
    assert ratio.ratio == pytest.approx(0.5)
    assert ratio.low == pytest.approx(0.5) == ratio.high, "in pairs, a common factor has no spread"
    assert compared.ratios["tokens_per_second"].ratio == 0.5
    json.dumps(compared.to_json(), allow_nan=False)


def test_different_plans_are_not_paired_and_their_intervals_hold_the_truth() -> None:
    compared = compare(result_file(1.0), result_file(1.0, seed=9, rate=3.0))
    assert not compared.paired
    assert "rate: 2.0 against 3.0" in compared.differences

    held = 0
    for seed in range(40):
        sides = [[item["ttft"] for item in result_file(1.0, seed=2 * seed + at)["samples"]] for at in (0, 1)]
        ratio = bootstrap_ratio(*sides, 50, paired=False, rounds=200)
        held += ratio.low <= 1 <= ratio.high
    assert held >= 35, "of 40 intervals at 95 %, about two miss"


def test_few_requests_have_no_interval_and_missing_values_no_ratio() -> None:
    few = compare(result_file(1.0, count=10), result_file(0.5, count=10))
    assert few.ratios["ttft_p50"].low is None
    nothing = [None] * 30
    assert bootstrap_ratio(nothing, nothing, 50, paired=True) is None
    some = bootstrap_ratio([1.0, None] * 15, [2.0, None] * 15, 95, paired=True)
    assert (some.ratio, some.low, some.high) == (2.0, 2.0, 2.0)


def test_what_differs_is_said() -> None:
    other = result_file(1.0) | {"model": "n", "errors": {"timeout": 3}, "client": {"limited": True}}
    other["environment"] = {"cpu": "d", "cores": 4}
    compared = compare(result_file(1.0), other)
    text = " ".join(compared.differences)
    for words in ("model: m against n", "client was the limit", "3 of 60 requests failed", "cores: 2 against 4"):
        assert words in text
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table(compared, names=("a.json", "b.json")))
    assert max(map(len, console.export_text().splitlines())) <= 80


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}'])
def test_a_file_of_something_else_is_refused(tmp_path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BenchError, match=r"x\.json: is not"):
        read_result(tmp_path / "x.json")
    with pytest.raises(BenchError, match="cannot be read"):
        read_result(tmp_path / "none.json")
