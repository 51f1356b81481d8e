import math

import pytest

from headrace_core.evidence.percentiles import Distribution, distribution, duration, nearest_rank


@pytest.mark.parametrize(
    ("percentile", "expected"), [(0.1, 1), (50, 100), (50.1, 101), (95, 190), (99, 198), (100, 200)]
)
def test_nearest_rank(percentile: float, expected: int) -> None:
    assert nearest_rank(list(range(200, 0, -1)), percentile) == expected


def test_a_rank_among_values_that_are_not_numbers_is_not_one_either() -> None:
    assert math.isnan(nearest_rank([1.0, math.nan, 2.0], 50))


def test_a_distribution_names_how_many_values_it_stands_on() -> None:
    assert distribution(range(1, 101)) == Distribution(count=100, p50=50, p95=95, p99=99, max=100)
    assert distribution([0.2]) == Distribution(1, 0.2, 0.2, 0.2, 0.2)
    assert distribution([]) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "12.3 ms"), (1.2, "1.2 s"), (75.0, "75 s")])
def test_a_duration_has_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text
