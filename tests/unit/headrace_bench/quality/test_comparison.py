"""Comparisons of two sides made of numbers."""

import math
from typing import Any

import pytest

from headrace_bench.quality.comparison import FirstDifference, compare, mean_nll
from headrace_bench.quality.rounding import bound
from headrace_core.observations import Choice, ModelWidths, Number


def choice(token: int, *others: tuple[int, float], logit: float = 5.0) -> Choice:
    return Choice.of(token, logit, others)


def both(quality: Any, base: list[Choice], candidate: list[Choice], *, kv: Number = Number.FLOAT32) -> Any:
    return compare(
        quality.side("A", {"one": quality.outcome(greedy=base), "two": quality.outcome(greedy=base)}),
        quality.side("B", {"one": quality.outcome(greedy=candidate), "two": quality.outcome(greedy=base)}, kv=kv),
        quality.shape, margin=0.01,
    )  # fmt: skip


def test_the_first_difference_is_found_with_the_margins_of_both_sides(quality: Any) -> None:
    start = choice(1, (2, 3.0))
    base = [start, choice(4, (7, 4.5), (8, 1.0)), choice(9, (1, 0.0))]
    candidate = [start, choice(7, (4, 4.75)), choice(3, (1, 0.0))]
    seen = both(quality, base, candidate).agreement
    assert seen.differences == (
        FirstDifference(
            text="one", index=1, base_token=4, candidate_token=7, base_margin=0.5, candidate_margin=0.25, is_tie=False
        ),
    )
    assert (seen.equal.estimate, seen.equal_but_ties.estimate) == (0.5, 0.5)
    assert seen.mean_prefix == 2.0  # 1 and 3
    assert seen.output_tokens == 3


def test_two_tokens_that_rounding_can_swap_are_a_tie(quality: Any) -> None:
    rounding = both(quality, [], []).rounding
    for share, is_tie in ((0.4, True), (0.6, False)):
        gap = share * rounding  # on each side, so that their sum is just below or above what rounding moves
        base, candidate = choice(4, (7, 5.0 - gap)), choice(7, (4, 5.0 - gap))
        comparison = both(quality, [base], [candidate])
        assert comparison.agreement.differences[0].is_tie is is_tie
        assert comparison.agreement.equal_but_ties.estimate == (1.0 if is_tie else 0.5)
        assert comparison.beyond_rounding is not is_tie


def test_a_tie_of_three_tokens_is_a_tie(quality: Any) -> None:
    base, candidate = choice(4, (6, 5.0), (7, 5.0)), choice(7, (4, 5.0), (6, 5.0))
    assert both(quality, [base], [candidate]).agreement.differences[0].is_tie


def test_a_token_outside_the_other_sides_top_tokens_is_not_a_tie(quality: Any) -> None:
    base, candidate = choice(4, (6, 5.0)), choice(7, (6, 5.0))
    assert not both(quality, [base], [candidate]).agreement.differences[0].is_tie


def test_a_choice_knows_its_token_even_where_others_equal_it() -> None:
    tied = Choice.of(9, 2.0, [(1, 2.0), (2, 2.0), (3, 2.0), (4, 2.0)])
    assert (tied.token, tied.ids, tied.margin) == (9, (9, 1, 2, 3), 0.0)
    assert tied.gap(2) == 0.0
    assert math.isinf(tied.gap(4))
    assert math.isinf(Choice((0,), (1.0,)).margin)


def test_texts_count_alike_whatever_their_length(quality: Any) -> None:
    base = {"short": quality.outcome([1.0]), "long": quality.outcome([3.0] * 9)}
    candidate = {"short": quality.outcome([1.5]), "long": quality.outcome([3.0] * 8 + [3.9])}
    seen = compare(quality.side("A", base), quality.side("B", candidate), quality.shape, margin=0.2).decode
    assert (seen.base, seen.candidate) == pytest.approx((2.0, (1.5 + 3.1) / 2))
    assert seen.difference.estimate == pytest.approx(0.3)
    assert seen.worst == ("short", pytest.approx(0.5))
    assert seen.largest_move == ("long", pytest.approx(0.9))
    assert (seen.hurt.estimate, seen.texts, seen.tokens) == (0.5, 2, 10)


def test_a_failed_text_is_named_and_left_out(quality: Any) -> None:
    nan = float("nan")
    base = {"fine": quality.outcome(1.0), "bad": quality.outcome(1.0), "lost": quality.outcome(nan, failed=True)}
    candidate = {"fine": quality.outcome(1.0), "bad": quality.outcome(nan, failed=True), "lost": quality.outcome(1.0)}
    comparison = compare(quality.side("A", base), quality.side("B", candidate), quality.shape, margin=0.01)
    assert (comparison.failed, comparison.lost, comparison.decode.texts) == (("bad",), ("lost",), 1)
    assert comparison.beyond_rounding


def test_without_a_text_there_is_no_number(quality: Any) -> None:
    comparison = compare(quality.side("A", {}), quality.side("B", {}), quality.shape, margin=0.01)
    assert math.isnan(comparison.decode.base)
    assert math.isnan(mean_nll([]))
    assert comparison.agreement.output_tokens == 0


def test_a_move_beyond_rounding_is_seen_even_where_the_mean_is_nil(quality: Any) -> None:
    up_and_down = quality.compared([0.001, -0.001] * 20)
    assert abs(up_and_down.decode.difference.estimate) < 1e-9
    assert up_and_down.beyond_rounding
    assert not quality.compared([1e-7, -1e-7] * 20).beyond_rounding


def test_a_narrow_cache_widens_the_rounding_bound(quality: Any) -> None:
    gap = 0.01
    base, candidate = choice(4, (7, 5.0 - gap)), choice(7, (4, 5.0 - gap))
    assert not both(quality, [base], [candidate]).agreement.differences[0].is_tie
    assert both(quality, [base], [candidate], kv=Number.BFLOAT16).agreement.differences[0].is_tie


def test_the_bound_grows_with_depth_width_and_coarseness() -> None:
    small = bound(ModelWidths(layers=2, width=64), Number.FLOAT32, Number.FLOAT32)
    assert bound(ModelWidths(layers=8, width=64), Number.FLOAT32, Number.FLOAT32) > small
    assert bound(ModelWidths(layers=2, width=640), Number.FLOAT32, Number.FLOAT32) > small
    assert bound(ModelWidths(layers=2, width=64), Number.FLOAT32, Number.FLOAT16) > small
    half = bound(ModelWidths(layers=2, width=64), Number.BFLOAT16, Number.BFLOAT16)
    # A wider cache than the numbers it holds changes nothing.
    assert half == bound(ModelWidths(layers=2, width=64), Number.BFLOAT16, Number.FLOAT32)
    assert half > 1000 * small
