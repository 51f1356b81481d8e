import math

import pytest

from headrace_core.evidence.counts import Counts, side_by_side, sum_of

ONE = Counts(good=30, requests=40, seconds=20, output_tokens=640)
OTHER = Counts(good=5, requests=10, seconds=10, output_tokens=160)


def test_ratios_come_from_the_counts() -> None:
    assert (ONE.attainment, ONE.goodput, ONE.throughput) == (0.75, 1.5, 32)


def test_windows_one_after_the_other_add_up() -> None:
    assert sum_of([ONE, OTHER]) == Counts(good=35, requests=50, seconds=30, output_tokens=800)
    assert sum_of([]) == Counts(good=0, requests=0, seconds=0)


def test_pods_side_by_side_share_their_time() -> None:
    assert side_by_side([ONE, OTHER]) == Counts(good=35, requests=50, seconds=15, output_tokens=800)
    with pytest.raises(ValueError, match="no counts"):
        side_by_side([])


def test_a_ratio_of_nothing_is_not_a_number() -> None:
    nothing = sum_of([])
    assert all(map(math.isnan, (nothing.attainment, nothing.goodput, nothing.throughput)))


@pytest.mark.parametrize(
    ("change", "finite"),
    [({}, True), ({"good": math.nan}, False), ({"requests": math.inf}, False), ({"output_tokens": math.nan}, False)]
    + [({"seconds": seconds}, False) for seconds in (0, -1, math.nan, math.inf)],
)
def test_only_numbers_over_some_time_are_finite(change: dict[str, float], finite: bool) -> None:
    values = {"good": 1.0, "requests": 2.0, "seconds": 3.0, "output_tokens": 4.0}
    assert Counts(**values | change).finite is finite
