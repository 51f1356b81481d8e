"""The texts of a comparison: 46 of our own (`texts.jsonl`), or a person's JSON lines; and how they become tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from headrace_engine.errors import SettingsError

BUILT_IN = "built-in"
FEWEST_TOKENS = 4
PROMPT_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage with a name that is unique among its fellows."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """A text as tokens. The first `prompt_len` are the prompt, of the greedy outputs too; the others are forced."""

    name: str
    tokens: tuple[int, ...]
    prompt_len: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return self.tokens[: self.prompt_len]


def read_texts(source: str) -> tuple[Passage, ...]:
    """The built-in texts, or those of a JSONL file. Raises `SettingsError` naming file and line."""
    if source == BUILT_IN:
        content, where = (resources.files(__package__) / "texts.jsonl").read_text(encoding="utf-8"), "texts.jsonl"
    else:
        where = f"--prompts {source}"
        try:
            content = Path(source).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{where}: cannot be read as UTF-8: {error}") from error
    # Not splitlines(): JSON strings may hold line separators that only Unicode knows.
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    texts = tuple(_parse(line, f"{where}, line {number}", number) for number, line in lines)
    if not texts:
        raise SettingsError(f'{where}: holds no text; one JSON object a line is expected, such as {{"text": "…"}}')
    names = [text.name for text in texts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"{where}: the id {twice[0]!r} is used twice; each text needs an id of its own, or none")
    return texts


def _parse(line: str, where: str, number: int) -> Passage:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{where}: is not JSON: {error}") from error
    text = value.get("text", value.get("prompt")) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise SettingsError(f'{where}: an object with a non-empty string "text" is expected, and "id" if you like')
    return Passage(str(value.get("id", f"line-{number}")), text)


def tokenize(texts: Sequence[Passage], tokenizer: Any, *, most: int) -> tuple[TokenizedText, ...]:
    """Cut each text to `most` tokens; a third of it is the prompt. Raises `SettingsError` for one too short."""
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
    """The order in which the texts are submitted, which decides who shares a batch with whom."""
    order = list(samples)
    random.Random(seed).shuffle(order)  # noqa: S311  (reproducible on purpose)
    return tuple(order)
