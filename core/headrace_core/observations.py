"""The request of `headrace bench quality` to an engine, and the engine's observations, with their JSON form. Pure.

One request has all sides, so that sides of one number format share a loaded model. Infinities and NaN travel as
Python's json writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace_core.knobs.table import KnobValue

TOP = 4  # of each greedy step: enough to find the other side's token among near ties


class Number(StrEnum):
    """Number formats."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of text with a unique name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """One config to observe. `about` repeats the flag's text, `values` are its knobs, not yet resolved.

    `num_blocks` counts KV blocks, the one for padding included, in place of kv_cache_bytes. Stating it asks for
    preemptions: admission is told to expect short outputs then.
    """

    label: str
    about: str
    values: Mapping[str, KnobValue]
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationRequest:
    """One or two sides, the base first, and transformers itself where `reference` is set.

    `reference_dtype` None is the first side's. Texts are cut to `text_tokens`; the seed decides the order in which they
    arrive. `threads` None: the engine's default.
    """

    model: str
    sides: tuple[SideSpec, ...]
    reference: bool
    reference_dtype: Number | None
    texts: tuple[Passage, ...]
    text_tokens: int
    output_tokens: int
    concurrency: int
    seed: int
    device: str
    threads: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ObservationRequest:
        """The request that `to_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        dtype = data["reference_dtype"]
        parts = {
            "sides": tuple(SideSpec(**side) for side in data["sides"]),
            "texts": tuple(Passage(**text) for text in data["texts"]),
            "reference_dtype": None if dtype is None else Number(dtype),
        }
        return cls(**dict(data) | parts)


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
    """The scheduler's counts during the run. Tokens are counted, not requests."""

    steps: int = 0
    preemptions: int = 0
    tokens_recomputed: int = 0
    cache_hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Figures from the passes over the texts. `spread`: standard deviation of a row's logits, mean over greedy rows."""

    outcomes: Mapping[str, TextOutcome]
    spread: float
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One config, or transformers itself. `about` describes it for people."""

    label: str
    about: str
    dtype: Number
    kv_dtype: Number
    seen: Observed

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Side:
        """The side that `Observations.to_json` wrote."""
        seen = data["seen"]
        outcomes = {name: _outcome(value) for name, value in seen["outcomes"].items()}
        return cls(
            label=data["label"],
            about=data["about"],
            dtype=Number(data["dtype"]),
            kv_dtype=Number(data["kv_dtype"]),
            seen=Observed(outcomes=outcomes, spread=seen["spread"], tally=Tally(**seen["tally"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWidths:
    """The parts of a model that decide how rounding grows: its layers, and the longest sum of a matrix product."""

    layers: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The answer: each side in the order of the request, the reference last, and the text of each token they chose."""

    model: str
    machine: Mapping[str, Any]
    widths: ModelWidths
    sides: tuple[Side, ...]
    words: Mapping[int, str]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observations:
        """The answer that `to_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        return cls(
            model=data["model"],
            machine=data["machine"],
            widths=ModelWidths(**data["widths"]),
            sides=tuple(Side.from_json(side) for side in data["sides"]),
            words={int(token): word for token, word in data["words"].items()},
        )


def _outcome(data: Mapping[str, Any]) -> TextOutcome:
    return TextOutcome(
        greedy=tuple(Choice(tuple(choice["ids"]), tuple(choice["logits"])) for choice in data["greedy"]),
        forced=tuple(data["forced"]),
        prompt=tuple(data["prompt"]),
        failed=data["failed"],
    )
