from itertools import product

import pytest

from headrace_core.scheduler.forecast import PRIOR, OutputPredictor, peak_blocks


def predictor(*lengths: int, window: int = 512) -> OutputPredictor:
    made = OutputPredictor(window)
    for length in lengths:
        made.record(length)
    return made


@pytest.mark.parametrize(
    ("generated", "max_tokens", "expected"),
    [(0, 10_000, PRIOR), (0, 7, 7), (20, 10_000, PRIOR), (1000, 10_000, 1000), (1000, 1003, 3)],
)
def test_without_evidence_as_much_again_is_expected(generated: int, max_tokens: int, expected: int) -> None:
    assert predictor().remaining(generated, max_tokens) == expected


@pytest.mark.parametrize(("generated", "expected"), [(0, 40), (10, 60), (11, 59), (60, 30), (89, 1), (90, PRIOR)])
def test_the_mean_of_those_that_were_longer_is_expected(generated: int, expected: int) -> None:
    assert predictor(10, 10, 50, 90).remaining(generated, 10_000) == expected


def test_max_tokens_is_never_exceeded_and_one_token_always_to_come() -> None:
    assert predictor(100).remaining(99, 100) == 1
    assert predictor(100).remaining(0, 30) == 30


def test_only_the_last_requests_count() -> None:
    made = predictor(*[1000] * 5, *[10] * 4, window=4)
    assert made.remaining(0, 10_000) == 10


def test_the_mean_is_rounded_up() -> None:
    assert predictor(1, 2).remaining(0, 100) == 2


@pytest.mark.parametrize(
    ("loads", "distinct", "peak"),
    [
        ([(10, 5)], 5, 15),  # alone it grows to its end
        ([(10, 5), (2, 5)], 10, 15),  # 10 + 2 * 2 = 14 when the short one ends; its 7 are free for the long one
        ([(4, 5), (4, 5)], 10, 18),
        ([(10, 5), (10, 5)], 6, 26),  # shared blocks are held once
        ([(0, 3), (0, 2)], 5, 5),
    ],
)
def test_the_peak_is_where_growth_and_endings_balance(
    loads: list[tuple[int, int]], distinct: int, peak: int
) -> None:  # fmt: skip
    assert peak_blocks(loads, distinct=distinct, block_size=1) == peak


def test_the_peak_is_that_of_a_simulation_where_blocks_have_one_token() -> None:
    for lengths in product(range(1, 6), repeat=3):
        loads = [(length, held) for length, held in zip(lengths, (2, 0, 1), strict=True)]
        most = 0
        for time in range(1, 6):
            most = max(most, sum(held + time for length, held in loads if length >= time))
        assert peak_blocks(loads, distinct=100, block_size=1) == most
