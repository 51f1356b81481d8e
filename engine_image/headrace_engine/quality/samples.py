"""Tokenized texts: cut to length, divided into prompt and continuation, and put into a random order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace_core.observations import Passage
from headrace_engine.errors import SettingsError

FEWEST_TOKENS = 4
PROMPT_SHARE = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """A text as tokens. The first `prompt_len` are the prompt, also for greedy outputs; the others are forced."""

    name: str
    tokens: tuple[int, ...]
    prompt_len: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return self.tokens[: self.prompt_len]


def tokenize(texts: Sequence[Passage], tokenizer: Any, *, most: int) -> tuple[TokenizedText, ...]:
    """Cut each text to `most` tokens; a third of them is the prompt. Raises `SettingsError` if one is too short."""
    samples = []
    for text in texts:
        tokens = tuple(tokenizer(text.text)["input_ids"][:most])
        if len(tokens) < FEWEST_TOKENS:
            raise SettingsError(
                f"text {text.name} has {len(tokens)} tokens, at least {FEWEST_TOKENS} are needed to have a prompt and "
                "something to predict: make it longer or leave it out"
            )
        samples.append(
            TokenizedText(name=text.name, tokens=tokens, prompt_len=max(1, round(len(tokens) * PROMPT_SHARE)))
        )
    return tuple(samples)


def shuffled(samples: Sequence[TokenizedText], seed: int) -> tuple[TokenizedText, ...]:
    """The texts in the order of submission, which determines which of them share a batch."""
    order = list(samples)
    random.Random(seed).shuffle(order)  # noqa: S311  (reproducible on purpose)
    return tuple(order)
