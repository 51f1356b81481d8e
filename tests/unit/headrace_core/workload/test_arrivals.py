"""Arrivals: as many as asked, in the window, and drawn as their process says."""

import math
import random
import statistics
from itertools import pairwise

import pytest

from headrace_core.workload.arrivals import ArrivalProcess, Arrivals


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
