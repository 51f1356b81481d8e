"""What one side of a comparison said about one text, and about all. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace_engine.quality.rounding import Number

TOP = 4  # of each greedy step: enough to find the other side's token among near ties


@dataclass(frozen=True, slots=True)
class Choice:
    """One greedy step: the token that was taken, then the other likeliest, with their logits; at most `TOP` in all."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]

    @classmethod
    def of(cls, token: int, logit: float, best: Iterable[tuple[int, float]]) -> Choice:
        """`best` are the likeliest with their logits, `token` among them unless others equal it."""
        pairs = [(token, logit), *(pair for pair in best if pair[0] != token)][:TOP]
        return cls(tuple(at for at, _ in pairs), tuple(value for _, value in pairs))

    @property
    def token(self) -> int:
        """The token that was taken."""
        return self.ids[0]

    @property
    def margin(self) -> float:
        """By how much the first logit exceeds the second."""
        return self.logits[0] - self.logits[1] if len(self.logits) > 1 else float("inf")

    def gap(self, token: int) -> float:
        """By how much the taken token exceeds `token`; infinite for one that is not among the likeliest."""
        return self.logits[0] - self.logits[self.ids.index(token)] if token in self.ids else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOutcome:
    """One text on one side. Log-probabilities are natural, of the text's own tokens.

    `forced`: of the tokens fed one by one, decode by decode. `prompt`: of every token but the first, by prefill.
    """

    greedy: tuple[Choice, ...]
    forced: tuple[float, ...]
    prompt: tuple[float, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the scheduler did meanwhile. Tokens are counted, not requests."""

    steps: int = 0
    preemptions: int = 0
    tokens_recomputed: int = 0
    cache_hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the passes over the texts saw. `spread`: standard deviation of a row's logits, the mean over greedy rows."""

    outcomes: Mapping[str, TextOutcome]
    spread: float
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One config, or transformers itself. `about` says it in a person's words."""

    label: str
    about: str
    dtype: Number
    kv_dtype: Number
    seen: Observed
