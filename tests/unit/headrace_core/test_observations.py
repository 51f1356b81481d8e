"""A request and an answer come out of JSON as they went in, to the last bit."""

import json
import math

import pytest

from headrace_core.observations import (
    Choice,
    ModelWidths,
    Number,
    ObservationRequest,
    Observations,
    Observed,
    Passage,
    Side,
    SideSpec,
    Tally,
    TextOutcome,
)


def test_a_request_is_read_as_it_was_written() -> None:
    request = ObservationRequest(
        model="m", sides=(SideSpec(label="A", about="defaults", values={"preemptible": False}, num_blocks=9),),
        reference=True, reference_dtype=Number.BFLOAT16, texts=(Passage("a", "one\u2028line"),), text_tokens=8,
        output_tokens=2, concurrency=1, seed=3, device="auto", threads=None,
    )  # fmt: skip
    assert ObservationRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_an_answer_is_read_as_it_was_written() -> None:
    outcome = TextOutcome(greedy=(Choice((3, 1), (0.1 + 0.2, -math.inf)),), forced=(-1e-17,), prompt=())
    seen = Observed(outcomes={"a": outcome}, spread=1 / 3, tally=Tally(steps=4, cache_hits=1))
    side = Side(label="A", about="defaults", dtype=Number.FLOAT32, kv_dtype=Number.FLOAT16, seen=seen)
    answer = Observations(
        model="m", machine={"threads": 2}, widths=ModelWidths(layers=2, width=64), sides=(side,), words={3: "x"}
    )  # fmt: skip
    assert Observations.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_logits_that_are_not_numbers_travel_too() -> None:
    outcome = TextOutcome(greedy=(), forced=(math.nan,), prompt=(), failed=True)
    side = Side(
        label="A", about="", dtype=Number.FLOAT32, kv_dtype=Number.FLOAT32,
        seen=Observed(outcomes={"a": outcome}, spread=0.0, tally=Tally()),
    )  # fmt: skip
    answer = Observations(model="m", machine={}, widths=ModelWidths(layers=1, width=1), sides=(side,), words={})
    back = Observations.from_json(json.loads(json.dumps(answer.to_json())))
    assert math.isnan(back.sides[0].seen.outcomes["a"].forced[0])


@pytest.mark.parametrize("data", [{}, {"sides": [], "texts": [], "reference_dtype": "int8"}])
def test_something_else_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        ObservationRequest.from_json(data)
