"""Text appears in whole characters and never shows a part of a stop string."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_engine.detokenize import Detokenizer, StopFilter, TextStream

TEXT = "a é 漢字 👩‍🔬 ok"


def stream(tokenizer: Any, ids: list[int], **options: Any) -> list[str]:
    text = TextStream(tokenizer, [], stops=options.pop("stops", []), incremental=True)
    return [*(text.push(token) for token in ids), text.finish()]


def test_characters_split_over_tokens_arrive_whole(tokenizer: Any) -> None:
    ids = tokenizer(TEXT)["input_ids"]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(ids) > len(TEXT)


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=30))
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert "".join(stream(tokenizer, tokenizer(text)["input_ids"])) == text


def test_output_that_ends_inside_a_character_ends_with_one_replacement(tokenizer: Any) -> None:
    assert "".join(stream(tokenizer, tokenizer("ab👩")["input_ids"][:-1])) == "ab\ufffd"


def test_bytes_that_are_no_character_do_not_hold_the_stream_back(tokenizer: Any) -> None:
    byte = tokenizer("é")["input_ids"][1]
    detokenizer = Detokenizer(tokenizer, [])
    pieces = [detokenizer.push([byte]) for _ in range(40)]
    assert len("".join(pieces)) >= 27


def test_at_once_and_piece_by_piece_agree(tokenizer: Any) -> None:
    ids = tokenizer(TEXT)["input_ids"]
    whole = TextStream(tokenizer, ids[:3], stops=[], incremental=False)
    assert [whole.push(token) for token in ids] == [""] * len(ids)
    assert whole.finish() == TEXT


def test_special_tokens_show_no_text(tokenizer: Any) -> None:
    eos = tokenizer.eos_token_id
    assert "".join(stream(tokenizer, [eos, *tokenizer("hi")["input_ids"], eos])) == "hi"


def test_a_stop_string_over_several_tokens_never_shows(tokenizer: Any) -> None:
    ids = tokenizer("before</s1>after")["input_ids"]
    text = TextStream(tokenizer, [], stops=["</s1>"], incremental=True)
    shown = []
    for token in ids:
        shown.append(text.push(token))
        if text.stopped:
            break
    assert "".join([*shown, text.finish()]) == "before"


def test_text_that_cannot_become_a_stop_is_released_at_once() -> None:
    stops = StopFilter(["abcd"])
    assert [stops.push(piece) for piece in ("x", "ab", "c", "!y")] == ["x", "", "", "abc!y"]
    assert stops.push("ab") == ""
    assert stops.flush() == "ab"


@pytest.mark.parametrize(("stops", "shown"), [(["b", "a"], ""), (["zz"], "xaby"), (["by", "y"], "xa")])
def test_the_earliest_stop_wins(stops: list[str], shown: str) -> None:
    filter_ = StopFilter(stops)
    text = filter_.push("xaby") + filter_.flush()
    assert text == ("x" if stops == ["b", "a"] else shown)
