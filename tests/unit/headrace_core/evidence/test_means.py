"""Student's t from the standard library, and the intervals made of it."""

import math
import random

import pytest

from headrace_core.evidence.means import hurt, paired_mean, t_cdf, t_quantile, texts_needed

# By degrees of freedom, from scipy 1.17: the distribution at 0.3, 1, 2.5 and 40; the quantiles of 0.9, 0.975, 0.9995.
STUDENT = {
    1: (
        (0.5927735790777, 0.75, 0.8788810584091, 0.9920439100879),
        (3.0776835371752, 12.7062047361746, 636.6192487687897),
    ),
    2: (
        (0.6037571695799, 0.7886751345948, 0.9351941398892, 0.9996877926639),
        (1.8856180831641, 4.3026527297494, 31.5990545764453),
    ),
    3: (
        (0.6081183539800, 0.8044988905221, 0.9561466764959, 0.9999828096596),
        (1.6377443536962, 3.1824463052837, 12.9239786366879),
    ),
    7: (
        (0.6135549747989, 0.8246916685898, 0.9795038907071, 0.9999999992048),
        (1.4149239276505, 2.3646242515927, 5.4078825208618),
    ),
    10: (
        (0.6148396962171, 0.8295534338489, 0.9842765778816, 0.9999999999988),
        (1.3721836411103, 2.2281388519862, 4.5868938587027),
    ),
    45: (
        (0.6172206796774, 0.8386711738750, 0.9919340223727, 1.0),
        (1.3006493322502, 2.0141033888808, 3.5202514649711),
    ),
    200: (
        (0.6177556349053, 0.8407405760451, 0.9933884136791, 1.0),
        (1.2857987939948, 1.9718962236339, 3.3398354062757),
    ),
}


@pytest.mark.parametrize("degrees", STUDENT)
def test_student_t_is_that_of_scipy(degrees: int) -> None:
    below, quantiles = STUDENT[degrees]
    assert [t_cdf(value, degrees) for value in (0.3, 1.0, 2.5, 40.0)] == pytest.approx(below, abs=1e-12)
    assert [t_quantile(share, degrees) for share in (0.9, 0.975, 0.9995)] == pytest.approx(quantiles, rel=1e-9)
    assert t_cdf(0.0, degrees) == 0.5
    assert t_quantile(0.5, degrees) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 5), (1.0, 5), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="degrees of at least 1"):
        t_quantile(probability, degrees)


def test_the_interval_of_a_mean_is_the_textbooks() -> None:
    interval = paired_mean([1.0, 2.0, 3.0, 4.0])
    reach = 3.182446 * math.sqrt((5 / 3) / 4)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2.5, 2.5 - reach, 2.5 + reach), rel=1e-6)


def test_equal_differences_leave_no_doubt_and_one_difference_leaves_all() -> None:
    assert paired_mean([0.0] * 5) == paired_mean([0.0] * 40)
    assert paired_mean([0.5]).high == math.inf
    nothing = paired_mean([])
    assert math.isnan(nothing.estimate)
    assert (nothing.low, nothing.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_text_that_failed_must_be_left_out(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        paired_mean([0.1, bad])


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_an_impossible_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        paired_mean([0.1, 0.2], confidence=confidence)


@pytest.mark.parametrize(("confidence", "count"), [(0.9, 8), (0.95, 16), (0.99, 46)])
def test_the_interval_covers_as_often_as_it_says(confidence: float, count: int) -> None:
    draw = random.Random(count)
    covered = sum(
        0.3 in paired_mean([draw.gauss(0.3, 2) for _ in range(count)], confidence=confidence) for _ in range(2000)
    )
    assert covered / 2000 == pytest.approx(confidence, abs=0.015)


def test_no_text_hurt_still_allows_some_share() -> None:
    none = hurt([0.0] * 40, 0.01)
    assert none.estimate == 0
    assert none.high == pytest.approx(0.088, abs=0.001)
    assert hurt([0.0, 0.02, 0.01, -1.0], 0.01).estimate == 0.25


def test_more_texts_are_asked_for_only_where_they_help() -> None:
    undecided = paired_mean([0.03, -0.03] * 10)
    needed = texts_needed(undecided, 0.01, 20)
    assert needed is not None
    more = paired_mean([0.03, -0.03] * (needed // 2))
    assert more.high < 0.0105
    assert texts_needed(paired_mean([0.02, 0.021, 0.03]), 0.01, 3) is None
    assert texts_needed(paired_mean([0.0]), 0.01, 1) is None
