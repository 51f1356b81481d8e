import math
import random

import pytest

from headrace_core.evidence.intervals import difference, wilson


def test_wilson_against_published_values() -> None:
    # Newcombe 1998 (one proportion), method 3.
    for successes, total, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        interval = wilson(successes, total)
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


def test_newcombe_against_published_values() -> None:
    # Newcombe 1998 (difference), table II, method 10: 56/70 - 48/80 and 9/10 - 3/10.
    interval = difference((48, 80), (56, 70))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    interval = difference((3, 10), (9, 10))
    assert (interval.low, interval.high) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_extremes_keep_a_width() -> None:
    interval = difference((10, 10), (10, 10))
    assert interval.estimate == 0
    assert interval.low < -0.1
    assert interval.high > 0.1
    assert wilson(10, 10).high == 1.0
    assert difference((0, 1000), (1000, 1000)).high <= 1.0


def test_without_data_nothing_is_excluded() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    nothing = difference((0, 0), (5, 5))
    assert math.isnan(nothing.estimate)
    assert (nothing.low, nothing.high) == (-1.0, 1.0)


def test_swapping_the_sides_mirrors_the_interval() -> None:
    one, other = difference((40, 90), (70, 80)), difference((70, 80), (40, 90))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


def test_more_confidence_is_wider_and_more_data_narrower() -> None:
    narrow, wide = difference((40, 80), (60, 80), confidence=0.8), difference((40, 80), (60, 80), confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    more = difference((400, 800), (600, 800), confidence=0.99)
    assert more.high - more.low < wide.high - wide.low


def test_coverage_of_a_true_null_is_near_nominal() -> None:
    rng = random.Random(7)
    excluded = 0
    for _ in range(1000):
        old, new = (sum(rng.random() < 0.9 for _ in range(60)) for _ in range(2))
        excluded += 0 not in difference((old, 60), (new, 60))
    assert excluded <= 65, "about 5 % of A/A pairs may exclude 0"


@pytest.mark.parametrize(("successes", "total"), [(-1, 5), (6, 5), (math.nan, 5), (1, math.nan), (1, math.inf)])
def test_impossible_counts(successes: float, total: float) -> None:
    with pytest.raises(ValueError, match="0 <= successes <= total"):
        wilson(successes, total)


@pytest.mark.parametrize("confidence", [0, 1, -1, math.nan])
def test_impossible_confidence(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence=confidence)
