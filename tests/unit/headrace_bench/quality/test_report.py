"""Tables for people at 80 columns, a dictionary for programs: from sides made of numbers."""

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from headrace_bench.quality import report
from headrace_bench.quality.command import make_plan
from headrace_bench.quality.run import QualityPlan, QualityResult, evaluate
from headrace_core.observations import Choice, ModelWidths, Observations

LONG = "a text with [brackets] and a name that is longer than any column of any table should be at eighty columns"


def planned() -> QualityPlan:
    return make_plan(
        "m", a="", b="max_num_seqs=4", reference="transformers", reference_dtype=None, concurrency=3,
        prompts="built-in", text_tokens=24, output_tokens=4, margin=0.01, min_agreement=0.8, confidence=0.95, seed=0,
        device="cpu", threads=1,
    )  # fmt: skip


def result(quality: Any, *, loss: float) -> QualityResult:
    names = [LONG, *map(str, range(45))]
    chosen = [Choice.of(1, 5.0, [(2, 3.0)])]
    other = chosen if not loss else [Choice.of(2, 5.0, [(1, 1.0)])]
    base = {name: quality.outcome(2.0, greedy=chosen) for name in names}
    worse = {name: quality.outcome(2.0 + loss, greedy=other) for name in names}
    sides = (quality.side("A", base), quality.side("B", worse), quality.side("transformers", base))
    return evaluate(
        planned(),
        Observations(
            model="m", machine={"device": "cpu"}, widths=ModelWidths(layers=2, width=64), sides=sides,
            words={1: "one", 2: "[two]", 3: "never seen apart"},
        ),
    )  # fmt: skip


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_everything_fits_80_columns(quality: Any, loss: float) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(report.tables(planned(), result(quality, loss=loss)))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("46 texts, 3 at once, seed 0", "same greedy output", "NonInferior" if not loss else "Inferior"):
        assert part in text
    if loss:
        for part in ("Where A and B first write something else", "real", "more in --json", "[two]"):
            assert part in text


def test_pairs_are_the_candidate_with_the_base_then_each_with_the_reference(quality: Any) -> None:
    found = result(quality, loss=0.5)
    pairs = [(comparison.base, comparison.candidate) for comparison, _ in found.pairs]
    assert pairs == [("A", "B"), ("transformers", "A"), ("transformers", "B")]
    assert found.words == {1: "one", 2: "[two]"}


def test_the_dictionary_holds_everything_with_null_for_nan_and_infinity(quality: Any) -> None:
    found = result(quality, loss=0.5)
    value = report.as_dict(planned(), found)
    json.dumps(value, allow_nan=False)
    assert (value["model"], value["exit_code"], value["verdict"]) == ("m", 3, "Inferior")
    assert value["settings"]["texts"] == 46
    failed = {"x": quality.outcome(math.nan, failed=True)}
    sides = tuple(quality.side(label, failed) for label in ("A", "B"))
    nothing = Observations(
        model="m", machine={}, widths=ModelWidths(layers=1, width=1), sides=sides, words={}
    )  # fmt: skip
    value = report.as_dict(planned(), evaluate(planned(), nothing))
    assert json.loads(json.dumps(value, allow_nan=False))["sides"][0]["texts"]["x"]["nll_decode"] == [None]
