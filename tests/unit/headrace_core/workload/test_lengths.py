"""Lengths: read from text, and drawn inside their bounds."""

import random
import statistics

import pytest

from headrace_core.workload.lengths import Length


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


def test_lengths_around_a_mean_stay_within_a_quarter_of_it() -> None:
    length = Length.around(768)
    assert (length.low, length.high, length.mean) == (576, 960, 768)
    assert Length.around(1) == Length.parse("1")
