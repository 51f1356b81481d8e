"""Stop strings: the first to complete wins, no part of it is shown, and nothing else is held back."""

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.text.stop_filter import StopFilter


def run(pieces: Sequence[str], stops: Sequence[str], *, include: bool = False) -> tuple[str, str | None]:
    stop_filter = StopFilter(stops, include=include)
    text = "".join(stop_filter.push(piece) for piece in pieces)
    return text + stop_filter.flush(), stop_filter.stop


def reference(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """The stop string that ends first; of those that end together the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


@given(
    text=st.text(alphabet="ab<", max_size=30),
    stops=st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), max_size=4),
    cuts=st.integers(0, 2**30),
    include=st.booleans(),
)
def test_the_result_does_not_depend_on_where_the_text_was_cut(
    text: str, stops: list[str], cuts: int, include: bool
) -> None:
    pieces, start = [], 0
    for at in range(1, len(text) + 1):
        if cuts >> at & 1 or at == len(text):
            pieces.append(text[start:at])
            start = at
    assert run(pieces, stops, include=include) == reference(text, stops, include=include)


@given(text=st.text(alphabet="ab<", max_size=30), stops=st.lists(st.text(alphabet="ab<", min_size=1, max_size=5)))
def test_only_a_possible_beginning_of_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    """Text that can no longer become a stop string is released in the same event."""
    stop_filter, shown = StopFilter(stops), ""
    for at, char in enumerate(text):
        shown += stop_filter.push(char)
        if stop_filter.stop is not None:
            return
        seen = text[: at + 1]
        held = [
            size for size in range(len(seen) + 1) if any(stop.startswith(seen[len(seen) - size :]) for stop in stops)
        ]
        assert len(seen) - len(shown) == (max(held) if held else 0)


def test_no_part_of_a_stop_string_over_three_tokens_is_shown() -> None:
    stop_filter = StopFilter(["</s1>"])
    assert [stop_filter.push(piece) for piece in ("before<", "/s", "1>after")] == ["before", "", ""]
    assert stop_filter.stop == "</s1>"
    assert stop_filter.push("more") == ""


@pytest.mark.parametrize(
    ("include", "text", "shown"),
    [
        (False, "one STOP two", "one "),
        (True, "one STOP two", "one STOP"),
        (False, "STOP", ""),
        (True, "STOP", "STOP"),
        (False, "nothing", "nothing"),
        (True, "nothing", "nothing"),
    ],
)
def test_the_text_is_exact_with_and_without_the_stop_string(include: bool, text: str, shown: str) -> None:
    for size in (1, 2, 3, 50):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert run(pieces, ["STOP"], include=include)[0] == shown


def test_text_that_cannot_become_a_stop_is_released_at_once() -> None:
    stop_filter = StopFilter(["abcd"])
    assert [stop_filter.push(piece) for piece in ("x", "ab", "c", "!y")] == ["x", "", "", "abc!y"]
    assert stop_filter.push("ab") == ""
    assert stop_filter.flush() == "ab"


@pytest.mark.parametrize(
    ("stops", "text", "result"),
    [
        (["b", "a"], "xaby", ("x", "a")),
        (["zz"], "xaby", ("xaby", None)),
        (["by", "y"], "xaby", ("xa", "by")),
        (["abcd", "b"], "xabcd", ("xa", "b")),  # complete first, though the other began earlier
        (["aab"], "aaab", ("a", "aab")),
        (["abab", "abac"], "ababac", ("", "abab")),
    ],
)
def test_the_one_that_is_complete_first_wins(stops: list[str], text: str, result: tuple[str, str | None]) -> None:
    assert run([text], stops) == result
    assert run(list(text), stops) == result


def test_stop_strings_pass_before_min_tokens_and_one_that_ends_later_counts() -> None:
    stop_filter = StopFilter(["END", "N"])
    assert stop_filter.push("aENDb", may_stop=False) == "aENDb"
    assert stop_filter.push("cEN", may_stop=False) == "c"
    assert stop_filter.push("D") == ""
    assert stop_filter.stop == "END"


def test_an_empty_stop_string_does_nothing() -> None:
    assert run(["ab"], [""]) == ("ab", None)


def test_a_megabyte_against_long_stop_strings_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace_engine.text import stop_filter as module

    steps = 0
    real = module._StopMatcher.feed

    def feed(self: module._StopMatcher, char: str) -> bool:
        nonlocal steps
        before = self.matched
        complete = real(self, char)
        # Each comparison beyond the first in a step shortens the current match, so the total is linear.
        steps += 1 + max(0, before + 1 - self.matched)
        return complete

    monkeypatch.setattr(module._StopMatcher, "feed", feed)
    draw = random.Random(3)
    text = "".join(draw.choice("ab") for _ in range(300_000))
    stop_filter = StopFilter(["a" * 2000 + "b", "ab" * 2000 + "c"])
    shown = "".join(stop_filter.push(text[at : at + 4]) for at in range(0, len(text), 4)) + stop_filter.flush()
    assert shown == text
    assert steps < 5 * 2 * len(text)


def test_every_short_stop_string_is_found_in_every_short_text() -> None:
    def words(length: int) -> Iterator[str]:
        return map("".join, itertools.product("ab", repeat=length))

    texts = list(words(9))
    for stop in itertools.chain.from_iterable(words(length) for length in range(1, 7)):
        for text in texts:
            assert run([text], [stop]) == reference(text, [stop], include=False)
