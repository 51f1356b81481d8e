"""From any steps that it sees, the model predicts finite, non-negative times; shapes equal what a loop would count."""

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.sim.step_time import StepShape, StepTimeModel

NUMBERS = st.integers(0, 1_000_000)
SHAPES = st.builds(
    StepShape, rows=NUMBERS, prefill_rows=NUMBERS, decode_keys=NUMBERS, prefill_keys=NUMBERS, prefill_pairs=NUMBERS,
    sampled=NUMBERS,
)  # fmt: skip
SECONDS = st.floats(1e-7, 1e3)


@given(st.lists(st.tuples(SHAPES, SECONDS), max_size=45), st.lists(SHAPES, min_size=1, max_size=3), st.booleans())
def test_predictions_are_times(observed, asked, as_seed) -> None:
    model = StepTimeModel(observed if as_seed else ())
    for shape, seconds in () if as_seed else observed:
        model.observe(shape, seconds)
    for shape in asked:
        predicted = model.predict(shape)
        assert math.isfinite(predicted)
        assert predicted >= 0
    assert all(value >= 0 and math.isfinite(value) for value in model.coefficients.values())
    assert math.isfinite(model.error)


@given(SHAPES, SECONDS)
def test_one_kind_of_step_is_predicted_as_it_was(shape, seconds) -> None:
    model = StepTimeModel()
    for _ in range(40):
        model.observe(shape, seconds)
    assert math.isclose(model.predict(shape), seconds, rel_tol=0.02)


SEQS = st.builds(
    lambda start, rows, prefill, samples: ScheduledSeq(
        request_id="a", start=start, token_ids=(0,) * (rows if prefill else 1), block_table=(), samples=samples,
        is_prefill=prefill,
    ),
    st.integers(0, 60), st.integers(0, 40), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(SEQS, max_size=6), st.none() | st.integers(1, 50))
def test_shapes_are_what_a_loop_over_every_query_counts(seqs, window) -> None:
    keys = pairs = decode_keys = 0
    for seq in seqs:
        seen = set()
        for at in range(seq.start, seq.start + len(seq.token_ids)):
            visible = range(max(0, at + 1 - window) if window else 0, at + 1)
            seen.update(visible)
            if seq.is_prefill:
                pairs += len(visible)
            else:
                decode_keys += len(visible)
        keys += len(seen) if seq.is_prefill else 0
    shape = StepShape.of(seqs, window=window)
    assert (shape.decode_keys, shape.prefill_pairs, shape.prefill_keys) == (decode_keys, pairs, keys)
    assert shape.rows == sum(len(seq.token_ids) for seq in seqs)
