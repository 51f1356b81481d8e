"""From step times to chunk, rates, order and windows."""

import pytest
from design_doubles import STEPS, design

from headrace_bench.errors import BenchError
from headrace_bench.modes.design import (
    Mode,
    choose_chunk,
    choose_rates,
    order,
    share_out,
)
from headrace_core.knobs.table import KNOB_BY_NAME
from headrace_core.sim.calibration import Calibration
from headrace_core.workload.lengths import Length


def test_the_chunk_is_the_smallest_that_costs_little_more_than_the_best() -> None:
    # Milliseconds a token: 3.6, 2.8, 2.4, 2.2, 2.1; 35 % above the best is 2.83.
    assert choose_chunk(STEPS) == 64
    flat = Calibration(decode={1: 0.01}, prefill={32: 0.01, 64: 0.011, 512: 0.02}, facts={})
    assert choose_chunk(flat) == 512
    tiny = Calibration(decode={1: 0.01}, prefill={8: 0.01, 16: 0.02}, facts={})
    assert choose_chunk(tiny) == 16


def test_a_long_prompt_is_many_chunks_or_what_the_model_holds() -> None:
    assert design().shape.long == Length(1024, 1024, 1024.0)
    assert design(max_model_len=512).shape.long.high == 352  # (512 - 120) less a tenth
    assert design(long=Length.parse("300")).shape.long.high == 300
    with pytest.raises(BenchError, match="no long prompt fits"):
        design(max_model_len=140)
    with pytest.raises(BenchError, match="can have 2120 tokens; the model holds 1000"):
        design(long=Length.parse("2000"), max_model_len=1000)


@pytest.mark.parametrize("mode", Mode)
def test_each_mode_is_a_valid_config_that_the_engine_takes_as_flags(mode: Mode) -> None:
    made = design()
    config = made.config(mode)
    assert config.batching == ("static" if mode is Mode.STATIC else "continuous")
    assert config.enable_chunked_prefill == (mode is Mode.CHUNKED)
    assert not config.enable_prefix_caching
    flags = made.flags(mode)
    known = {knob.flag for knob in KNOB_BY_NAME.values()}
    given = [flag.replace("--no-", "--") for flag in flags if flag.startswith("--")]
    assert set(given) <= known
    assert len(given) == len(made.knobs(mode))


def test_modes_differ_in_nothing_but_batching_and_chunks() -> None:
    knobs = {mode: design().knobs(mode) for mode in Mode}
    shared = {"max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "max_queue_len"}
    for mode in Mode:
        assert {name: knobs[mode][name] for name in shared} == {name: knobs[Mode.STATIC][name] for name in shared}


def test_rates_lie_where_the_modes_differ_and_where_they_should_not() -> None:
    rates = choose_rates({Mode.STATIC: 1.0, Mode.CONTINUOUS: 2.0, Mode.CHUNKED: 2.2})
    assert rates.high == pytest.approx(1.65)
    assert rates.low == 0.5
    assert rates.separates
    close = choose_rates({Mode.STATIC: 1.0, Mode.CONTINUOUS: 1.3, Mode.CHUNKED: 1.3})
    assert close.high == pytest.approx(1.15)
    assert close.separates
    none = choose_rates({Mode.STATIC: 1.0, Mode.CONTINUOUS: 1.0, Mode.CHUNKED: 1.0})
    assert none.high == pytest.approx(0.9)
    assert not none.separates


def test_visits_alternate() -> None:
    assert [mode.value[:2] for _, mode in order(2)] == ["st", "co", "ch", "ch", "co", "st"]
    assert [turn for turn, _ in order(2)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("budget", [300.0, 540.0, 3600.0])
def test_windows_fill_the_budget_and_no_more(budget: float) -> None:
    visits = order(2)
    windows = share_out(budget, visits=len(visits), start=10.0, batch=15.0)
    spent = sum(
        10 + windows.low + windows.high + 2 * (windows.warmup + windows.drain) + windows.full_of(mode)
        for _, mode in visits
    )
    assert 0.85 * budget < spent <= 1.1 * budget
    assert windows.full_static >= windows.full


def test_a_budget_of_nothing_still_measures_something() -> None:
    windows = share_out(0.0, visits=3, start=10.0, batch=100.0)
    assert min(windows.low, windows.high, windows.full, windows.warmup) > 0
    assert windows.full_static == 2.5 * windows.full
