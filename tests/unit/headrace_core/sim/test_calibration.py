"""Step times: read from what the engine's benchmark prints, and interpolated in one way for everyone."""

import json

import pytest

from headrace_core.scheduler.events import ScheduledSeq, StepPlan
from headrace_core.sim.calibration import Calibration, CalibrationError, interpolate

# A step costs 50 ms and 2 ms a row.
STEPS = Calibration(
    decode={1: 0.052, 16: 0.082}, prefill={32: 0.114, 64: 0.178, 128: 0.306, 256: 0.562, 512: 1.074}
)  # fmt: skip


def plan(*, decodes: int, prefill: int) -> StepPlan:
    rows = [(1, False)] * decodes + [(prefill, True)] * bool(prefill)
    seqs = [
        ScheduledSeq(
            request_id=str(at), start=0, token_ids=(1,) * count, block_table=(1,), samples=True, is_prefill=is_prefill
        )
        for at, (count, is_prefill) in enumerate(rows)
    ]
    return StepPlan(step=1, generation=1, seqs=tuple(seqs))


def test_a_calibration_is_what_bench_engine_prints() -> None:
    text = {"decode_step_seconds": {"1": 0.1}, "prefill_step_seconds": {"32": 0.2}, "dtype": "float32"}
    parsed = Calibration.from_json(json.loads(json.dumps(text)))
    assert (parsed.decode, parsed.prefill, parsed.facts) == ({1: 0.1}, {32: 0.2}, {"dtype": "float32"})


@pytest.mark.parametrize(
    "data",
    [
        [], {}, None, {"decode_step_seconds": {}}, {"decode_step_seconds": {"x": 1}},
        {"decode_step_seconds": {"1": 0.1}, "prefill_step_seconds": {}},
        {"decode_step_seconds": {"1": 0.1}, "prefill_step_seconds": {"32": float("nan")}},
        {"decode_step_seconds": {"0": 0.1}, "prefill_step_seconds": {"32": 0.1}},
        {"decode_step_seconds": 3, "prefill_step_seconds": {"32": 0.1}},
    ],
)  # fmt: skip
def test_other_input_is_refused_with_the_command_that_makes_a_calibration(data: object) -> None:
    with pytest.raises(CalibrationError, match="headrace bench engine MODEL --json"):
        Calibration.from_json(data)


def test_interpolation_passes_through_the_points_and_goes_on_beyond_them() -> None:
    table = {32: 1.0, 128: 2.0, 512: 8.0}
    assert [interpolate(table, at) for at in table] == [1.0, 2.0, 8.0]
    assert interpolate(table, 16) == 1.0
    assert interpolate(table, 896) == pytest.approx(14.0)
    assert interpolate({4: 2.0}, 8) == 4.0
    assert interpolate({4: 2.0}, 1) == 2.0


def test_noise_in_the_points_never_makes_a_large_step_cost_less_than_nothing() -> None:
    table = {4: 3.0, 8: 2.0}
    assert interpolate(table, 6) == 2.5
    assert interpolate(table, 800) == 2.0


def test_rows_go_from_sequences_to_tokens_of_a_prompt() -> None:
    assert STEPS.rows_step(1) == 0.052
    assert STEPS.rows_step(8) == pytest.approx(0.066)
    assert STEPS.rows_step(100) == pytest.approx(0.25)
    assert STEPS.rows_step(1024) == pytest.approx(2.098)


def test_a_step_costs_by_its_rows_and_never_less_than_its_decodes_alone() -> None:
    for decodes, prefill in ((4, 0), (0, 64), (4, 64)):
        assert STEPS.step_seconds(plan(decodes=decodes, prefill=prefill)) == STEPS.rows_step(decodes + prefill)
    # Decodes read a context each: sixteen of them take longer than 32 tokens of one prompt.
    dear = Calibration(decode={1: 0.1, 16: 0.4}, prefill={32: 0.3, 64: 0.5})
    assert dear.step_seconds(plan(decodes=16, prefill=16)) == 0.4
    assert dear.step_seconds(plan(decodes=0, prefill=32)) == 0.3


def test_a_prompt_takes_its_chunks_and_what_is_left() -> None:
    assert STEPS.prompt_seconds(128, 64) == pytest.approx(2 * 0.178)
    assert STEPS.prompt_seconds(100, 64) == pytest.approx(0.178 + STEPS.prefill_step(36))
