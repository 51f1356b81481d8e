"""The step-time model finds the costs that steps were made of, and stays sane where they say nothing."""

import math
import random
from collections.abc import Callable

import pytest

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.sim.step_time import (
    TERMS,
    StepShape,
    StepTimeModel,
    _features,
    solve_non_negative,
)

TRUE = {"step": 0.004, "row": 2e-4, "decode_key": 2e-6, "prefill_pair": 3e-8, "sample": 5e-4}


def seq(start: int, tokens: int, *, prefill: bool, samples: bool = True, fork_of: str | None = None) -> ScheduledSeq:
    return ScheduledSeq(
        request_id="a", start=start, token_ids=tuple(range(tokens)), block_table=(), samples=samples,
        is_prefill=prefill, fork_of=fork_of,
    )  # fmt: skip


def decode(count: int, context: int = 100) -> StepShape:
    return StepShape.of([seq(context - 1, 1, prefill=False)] * count)


def chunk(tokens: int, start: int = 0, *, samples: bool = False) -> StepShape:
    return StepShape.of([seq(start, tokens, prefill=True, samples=samples)])


def cost(shape: StepShape) -> float:
    pairs = shape.prefill_pairs - shape.prefill_rows / 2
    amounts = (1, shape.rows, shape.decode_keys, pairs, shape.sampled)
    return sum(TRUE[term] * amount for term, amount in zip(TERMS, amounts, strict=True))


def steps(count: int, seed: int = 1) -> list[StepShape]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        rows = [seq(rng.randrange(10, 2000), 1, prefill=False) for _ in range(rng.randrange(1, 17))]
        if rng.random() < 0.5:
            chunk_rows = rng.choice([64, 200, 512])
            rows.append(seq(rng.randrange(2000), chunk_rows, prefill=True, samples=rng.random() < 0.3))
        made.append(StepShape.of(rows))
    return made


def taught(shapes: list[StepShape], seconds: Callable[[StepShape], float] = cost, **options: float) -> StepTimeModel:
    model = StepTimeModel(**options)
    for shape in shapes:
        model.observe(shape, seconds(shape))
    return model


def test_the_shape_of_a_step() -> None:
    shape = StepShape.of([
        seq(99, 1, prefill=False), seq(49, 1, prefill=False),
        seq(10, 4, prefill=True, samples=False), seq(7, 0, prefill=True, fork_of="a"),
    ])  # fmt: skip
    assert shape == StepShape(
        rows=6, prefill_rows=4, decode_keys=150, prefill_keys=14, prefill_pairs=11 + 12 + 13 + 14, sampled=3
    )


def test_a_window_bounds_what_a_query_sees() -> None:
    shape = StepShape.of([seq(99, 1, prefill=False), seq(5, 1, prefill=False), seq(6, 5, prefill=True)], window=8)
    assert shape.decode_keys == 8 + 6
    assert shape.prefill_pairs == 7 + 8 + 8 + 8 + 8
    assert shape.prefill_keys == 6 + 5, "the first query still sees all six before the chunk"
    assert StepShape.of([seq(100, 5, prefill=True)], window=8).prefill_keys == 7 + 5


def test_it_finds_the_costs_that_steps_are_made_of() -> None:
    model = taught(steps(400))
    for term in TERMS:
        assert model.coefficients[term] == pytest.approx(TRUE[term], rel=0.02)
    for shape in [*steps(50, seed=2), chunk(2048), decode(64, 4000)]:
        assert model.predict(shape) == pytest.approx(cost(shape), rel=0.02)
    assert model.error < 0.01
    assert abs(model.bias) < 0.01


def test_the_prediction_is_the_mean_of_noisy_steps() -> None:
    rng = random.Random(3)
    model = taught(steps(3000), lambda shape: cost(shape) * (0.8 + 0.4 * rng.random()))
    ratios = [model.predict(shape) / cost(shape) for shape in steps(200, seed=4)]
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.02)
    assert model.error == pytest.approx(0.1, abs=0.04), "the mean distance of the noise"


def test_a_step_that_was_held_up_hardly_moves_it() -> None:
    model = taught(steps(500))
    before = model.predict(decode(8))
    model.observe(decode(8), 50 * cost(decode(8)))
    assert model.predict(decode(8)) < 1.3 * before
    for shape in steps(200, seed=5):
        model.observe(shape, cost(shape))
    assert model.predict(decode(8)) == pytest.approx(cost(decode(8)), rel=0.05)


def test_it_forgets_outdated_costs() -> None:
    model = taught(steps(600), memory=100)
    for shape in steps(600, seed=6):
        model.observe(shape, 3 * cost(shape))
    assert model.predict(decode(8)) == pytest.approx(3 * cost(decode(8)), rel=0.05)


def test_a_long_stretch_of_equal_steps_ruins_nothing() -> None:
    # Plain recursive least squares with forgetting blows up here: what is not excited is forgotten without limit.
    model = taught([decode(8)] * 20_000)
    assert model.predict(decode(8)) == pytest.approx(cost(decode(8)), rel=0.01)
    assert all(math.isfinite(value) for value in model.coefficients.values())
    for shape in steps(300):
        model.observe(shape, cost(shape))
    assert model.predict(chunk(512)) == pytest.approx(cost(chunk(512)), rel=0.05)


def test_the_first_prefill_after_many_decodes_is_learned_at_once() -> None:
    model = taught([decode(1 + at % 16, 100 + at) for at in range(2000)])
    for _ in range(16):
        model.observe(chunk(512), 3.0)
    assert model.predict(chunk(512)) == pytest.approx(3.0, rel=0.1)
    assert model.predict(decode(8)) == pytest.approx(cost(decode(8)), rel=0.25)


def cliff(shape: StepShape) -> float:
    """One row is a matrix times a vector: less than half the time of two rows."""
    return cost(shape) * (0.4 if shape.rows == 1 else 1.0)


def test_a_table_corrects_what_no_line_can_follow() -> None:
    model = taught([decode(1 + at % 8, 100 + at) for at in range(1000)], cliff)
    for rows in range(1, 9):
        assert model.predict(decode(rows, 1000)) == pytest.approx(cliff(decode(rows, 1000)), rel=0.06)
    assert model.corrections[1] < 0.8
    assert model._line(_features(decode(1, 1000))) > 1.3 * cliff(decode(1, 1000)), "the line alone would not do"


def test_without_a_cliff_nothing_is_corrected() -> None:
    assert taught(steps(400)).corrections == {}
    rng = random.Random(9)
    noisy = taught([decode(1 + at % 8) for at in range(1000)], lambda shape: cost(shape) * (0.9 + 0.2 * rng.random()))
    assert all(abs(factor - 1) < 0.1 for factor in noisy.corrections.values())


CALIBRATION = [
    *((decode(n, 129), cliff(decode(n, 129))) for n in (1, 2, 4, 8, 16)),
    *((chunk(n, samples=True), cost(chunk(n, samples=True))) for n in (32, 64, 128, 256, 512)),
]


def test_a_calibration_is_a_start() -> None:
    model = StepTimeModel(CALIBRATION)
    assert model.ready
    for rows in (1, 2, 8, 16):
        assert model.predict(decode(rows, 129)) == pytest.approx(cliff(decode(rows, 129)), rel=0.1)
    assert model.predict(chunk(384, samples=True)) == pytest.approx(cost(chunk(384, samples=True)), rel=0.1)


def test_steps_outweigh_the_calibration() -> None:
    model = StepTimeModel(CALIBRATION)
    for shape in steps(600):
        model.observe(shape, 2 * cost(shape))
    assert model.predict(decode(8, 129)) == pytest.approx(2 * cost(decode(8, 129)), rel=0.05)


def test_what_live_steps_say_nothing_about_stays_calibrated() -> None:
    model = StepTimeModel(CALIBRATION)
    for _ in range(3000):
        model.observe(decode(8, 129), cost(decode(8, 129)))
    assert model.predict(chunk(384, samples=True)) == pytest.approx(cost(chunk(384, samples=True)), rel=0.2)


def test_before_anything_is_known_it_says_so() -> None:
    model = StepTimeModel()
    assert not model.ready
    assert model.predict(decode(4)) == 0.0
    assert set(model.coefficients.values()) == {0.0}
    model.observe(decode(4), 0.01)
    assert model.ready
    assert model.predict(decode(4)) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_invalid_durations_are_ignored(bad: float) -> None:
    model = taught(steps(100))
    before = dict(model.coefficients)
    model.observe(decode(4), bad)
    assert model.coefficients == before


def test_a_memory_below_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 step"):
        StepTimeModel(memory=0)


def test_negative_coefficients_are_left_out() -> None:
    # Unbounded: x = (2, -1).
    found = solve_non_negative([[2.0, 1.0], [1.0, 2.0]], [3.0, 0.0])
    assert found == (pytest.approx(1.5), 0.0)
    assert solve_non_negative([[1.0, 0.0], [0.0, 1.0]], [-1.0, -2.0]) == (0.0, 0.0)
