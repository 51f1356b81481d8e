"""Predictions for each mode by the engine's scheduler on measured step times."""

from design_doubles import STEPS, design

from headrace_bench.modes.design import (
    Mode,
)
from headrace_bench.modes.predict import batch_seconds, predict


def test_the_scheduler_predicts_that_continuous_batching_carries_more() -> None:
    found = {mode: predict(design(), STEPS, mode, steps=600) for mode in Mode}
    assert found[Mode.STATIC].requests_per_second < 0.8 * found[Mode.CONTINUOUS].requests_per_second
    assert found[Mode.CONTINUOUS].requests_per_second < 1.3 * found[Mode.CHUNKED].requests_per_second
    assert found[Mode.CHUNKED] == predict(design(), STEPS, Mode.CHUNKED, steps=600), "repeatable"


def test_a_prediction_can_have_a_duration_and_a_batch_takes_its_longest_member() -> None:
    short = predict(design(), STEPS, Mode.CHUNKED, duration=5.0)
    assert 5.0 <= short.seconds < 8.0
    assert short.tokens > 0
    assert batch_seconds(design(), STEPS) > 40 * STEPS.rows_step(8)
