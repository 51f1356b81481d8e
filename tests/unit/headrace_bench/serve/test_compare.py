"""Two results side by side."""

import io
import json
import random

import pytest
from rich.console import Console

from headrace_bench.errors import BenchError
from headrace_bench.serve.compare import bootstrap_ratio, compare, comparison_table, read_result


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


def test_differences_are_listed() -> None:
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
