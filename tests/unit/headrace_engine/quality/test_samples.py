"""Tokenizing texts, dividing them and ordering them."""

from typing import Any

import pytest

from headrace_bench.quality.texts import BUILT_IN, read_texts
from headrace_core.observations import Passage
from headrace_engine.errors import SettingsError
from headrace_engine.quality.samples import shuffled, tokenize


def test_a_third_is_the_prompt_and_long_texts_are_cut(tokenizer: Any) -> None:
    (sample,) = tokenize([Passage("a", "x" * 90)], tokenizer, most=60)
    assert (len(sample.tokens), sample.prompt_len, len(sample.prompt)) == (60, 20, 20)
    (shortest,) = tokenize([Passage("a", "abcd")], tokenizer, most=60)
    assert shortest.prompt_len == 1
    with pytest.raises(SettingsError, match="text a has 3 tokens, at least 4 are needed"):
        tokenize([Passage("a", "abc")], tokenizer, most=60)


def test_the_seed_decides_the_order(tokenizer: Any) -> None:
    samples = tokenize(read_texts(BUILT_IN), tokenizer, most=8)
    assert shuffled(samples, 1) == shuffled(samples, 1)
    assert shuffled(samples, 1) != shuffled(samples, 2)
    assert sorted(item.name for item in shuffled(samples, 1)) == sorted(item.name for item in samples)
