"""Who arrives when, and how long: exact where it can be, seeded everywhere."""

import math
import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from headrace_bench.serve.plan import Prefix, RequestMix, endless, plan_window, with_warmup
from headrace_core.workload.arrivals import ArrivalProcess, Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import RequestKind

SHAPE = RequestMix(
    prompt=Length.parse("uniform:8:16"), output=Length.parse("lognormal:20:0.8"), long=Length.parse("200"),
    long_share=0.25,
)  # fmt: skip


def rng() -> random.Random:
    return random.Random(5)


def variation(times: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(times)]
    return statistics.stdev(gaps) / statistics.fmean(gaps)


def test_uniform_arrivals_have_equal_gaps() -> None:
    assert Arrivals(process=ArrivalProcess.UNIFORM, rate=2).times(4, 2.0, rng()) == [0.0, 0.5, 1.0, 1.5]


def test_poisson_gaps_vary_as_much_as_they_are_long_and_bursts_more() -> None:
    poisson = Arrivals(rate=10).times(4000, 400.0, rng())
    bursts = Arrivals(process=ArrivalProcess.BURSTS, rate=10, burstiness=0.25).times(4000, 400.0, rng())
    assert variation(poisson) == pytest.approx(1.0, abs=0.08)
    assert variation(bursts) == pytest.approx(2.0, abs=0.2)  # 1 / sqrt(0.25)


def test_a_ramp_sends_more_as_it_rises() -> None:
    arrivals = Arrivals(process=ArrivalProcess.UNIFORM, rate=1, ramp_to=3)
    assert arrivals.count(10) == 20
    times = arrivals.times(2000, 10.0, rng())
    # At a rate of 1 + 0.2 t, five seconds have 7.5 of the 20.
    assert sum(at < 5 for at in times) == pytest.approx(750, abs=2)
    falling = Arrivals(process=ArrivalProcess.UNIFORM, rate=3, ramp_to=1).times(2000, 10.0, rng())
    assert sum(at < 5 for at in falling) == pytest.approx(1250, abs=2)


def test_all_at_once_takes_no_time() -> None:
    arrivals = Arrivals(rate=math.inf)
    assert arrivals.seconds(7) == 0
    assert arrivals.times(7, 0.0, rng()) == [0.0] * 7


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"rate": 1, "ramp_to": 0}, "ramp_to"),
        ({"rate": math.inf, "ramp_to": 2}, "ramp_to"),
        ({"rate": 1, "burstiness": 0}, "burstiness"),
    ],
)
def test_bad_arrivals_name_their_field(values: dict, word: str) -> None:
    with pytest.raises(ValueError, match=f"^{word}: "):
        Arrivals(**values)


@pytest.mark.parametrize(
    ("text", "low", "high", "mean"),
    [("64", 64, 64, 64), ("uniform:3:9", 3, 9, 6), ("lognormal:10:0.5", 1, 80, 10), ("lognormal:10:0.5:32", 1, 32, 10)],
)
def test_lengths_are_read(text: str, low: int, high: int, mean: float) -> None:
    length = Length.parse(text)
    assert (length.low, length.high, length.mean) == (low, high, mean)
    assert Length.parse(str(length)) == length
    drawn = [length.draw(random.Random(seed)) for seed in range(300)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "-3", "1.5", "uniform:9:3", "uniform:1", "lognormal:10", "lognormal:10:0", "lognormal:10:4",
     "lognormal:10:0.5:5", "normal:3:4", "fixed:", "1e9", "uniform:0:4", "lognormal:nan:1"],
)  # fmt: skip
def test_a_bad_length_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"length|bound|sigma|mean"):
        Length.parse(text)


def test_a_window_is_exact_in_its_mix_and_the_same_for_its_seed() -> None:
    plan = plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=3)
    assert len(plan) == 40
    assert sum(item.kind is RequestKind.LONG for item in plan) == 10
    assert {item.prompt_tokens for item in plan if item.kind is RequestKind.LONG} == {200}
    assert [item.at for item in plan] == sorted(item.at for item in plan)
    assert plan == plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=3)
    assert plan != plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=4)


def test_another_rate_leaves_the_lengths_as_they_were() -> None:
    slow, fast = (plan_window(Arrivals(rate=rate), SHAPE, requests=20, duration=20 / rate, seed=3) for rate in (1, 9))
    lengths = [[(item.prompt_tokens, item.output_tokens) for item in plan] for plan in (slow, fast)]
    assert lengths[0] == lengths[1]


def test_the_warmup_comes_before_and_changes_nothing_of_what_is_measured() -> None:
    arrivals = Arrivals(rate=5, ramp_to=9)
    without = with_warmup(arrivals, SHAPE, requests=35, duration=5.0, warmup=0.0, seed=1)
    plan = with_warmup(arrivals, SHAPE, requests=35, duration=5.0, warmup=2.0, seed=1)
    before, measured = plan[:10], plan[10:]
    assert all(item.at <= 2.0 for item in before)
    assert [replace(item, at=item.at - 2.0).at for item in measured] == pytest.approx([item.at for item in without])


def test_a_shared_start_is_part_of_the_prompt() -> None:
    shape = replace(SHAPE, long_share=0.0, prefix=Prefix(tokens=50, share=0.5, groups=3))
    plan = plan_window(Arrivals(rate=1), shape, requests=400, duration=400.0, seed=0)
    shared = [item for item in plan if item.prefix_tokens]
    assert len(shared) == pytest.approx(200, abs=40)
    assert all(item.prefix_tokens == 50 and item.prompt_tokens >= 51 for item in shared)
    assert {item.prefix_group for item in shared} == {0, 1, 2}
    assert shape.longest == 51 + shape.output.high


def test_a_closed_loops_source_never_ends_and_keeps_the_mix() -> None:
    source = endless(SHAPE, 7, block=8)
    items = [next(source) for _ in range(40)]
    assert sum(item.kind is RequestKind.LONG for item in items) == 10
    assert len({item.output_tokens for item in items}) > 5


@pytest.mark.parametrize(
    ("change", "word"),
    [({"long_share": 1.5}, "long_share"), ({"long_share": 0.5, "long": None}, "long_prompt_tokens")],
)
def test_a_bad_shape_names_its_field(change: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        replace(SHAPE, **change)
