"""Answers of two modes, compared in pairs."""

from modes_doubles import record, run

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.equal import compare_answers


def test_answers_are_compared_in_pairs_and_the_first_difference_is_shown() -> None:
    other = [record(0, 0.1, text="abc"), record(1, 0.1, text="abXYZ"), record(2, None, error="http_503")]
    runs = [
        run(Mode.CONTINUOUS, Level.LOW, [record(n, 0.1, text="abcde") if n == 1 else record(n, 0.1) for n in range(3)]),
        run(Mode.CHUNKED, Level.LOW, other),
        run(Mode.CHUNKED, Level.LOW, other, repetition=1),
    ]
    found = {(item.first, item.second): item for item in compare_answers(runs)}
    pair = found[Mode.CONTINUOUS, Mode.CHUNKED]
    assert (pair.compared, pair.equal) == (2, 1)
    assert (pair.difference.number, pair.difference.at, pair.difference.first) == (1, 2, "cde")
    itself = found[Mode.CHUNKED, Mode.CHUNKED]
    assert (itself.compared, itself.equal, itself.difference) == (2, 2, None)
    assert (Mode.STATIC, Mode.CHUNKED) not in found
