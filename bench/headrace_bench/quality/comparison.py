"""Two sides over the same texts, paired. Pure.

The base is the known side, the candidate the one in question; a positive difference means that the candidate is worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_bench.quality.rounding import bound
from headrace_core.evidence.intervals import Interval, wilson
from headrace_core.evidence.means import hurt, paired_mean
from headrace_core.observations import Choice, ModelWidths, Side, TextOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where the greedy outputs of a text first differ: at output token `index`, from 0, after an equal history.

    The margins are those of each side's own top two logits. `is_tie`: both sides' preference for their own token is
    within what rounding can change.
    """

    text: str
    index: int
    base_token: int
    candidate_token: int
    base_margin: float
    candidate_margin: float
    is_tie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of greedy outputs. `equal`: share of texts with the same output; `equal_but_ties` counts ties as equal.

    `mean_prefix`: output tokens before the first difference, of `output_tokens`.
    """

    equal: Interval
    equal_but_ties: Interval
    mean_prefix: float
    output_tokens: int
    differences: tuple[FirstDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """Negative log-likelihood of the texts' tokens, nats a token: the mean over texts of each text's mean.

    `worst` is the text that lost most and what it lost; `largest_move` the largest move of one token's
    log-probability, in either direction.
    """

    base: float
    candidate: float
    difference: Interval
    hurt: Interval
    worst: tuple[str, float]
    largest_move: tuple[str, float]
    texts: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityComparison:
    """All comparisons of two sides.

    `failed`: texts that failed on the candidate alone. `lost`: texts that failed on the base, so nothing can be
    said about them. `rounding`: the most that rounding alone moves a log-probability, or the gap of two logits.
    """

    base: str
    candidate: str
    agreement: Agreement
    decode: Likelihood
    prefill: Likelihood
    failed: tuple[str, ...]
    lost: tuple[str, ...]
    rounding: float

    @property
    def beyond_rounding(self) -> bool:
        """Whether something moved more than rounding explains: a lossy number format, or a fault."""
        moves = (self.decode.largest_move[1], self.prefill.largest_move[1])
        ties = all(item.is_tie for item in self.agreement.differences)
        return bool(self.failed) or not ties or any(move > self.rounding for move in moves)


def compare(
    base: Side, candidate: Side, shape: ModelWidths, *, margin: float, confidence: float = 0.95
) -> QualityComparison:
    """Compare two sides that ran the same texts. `margin`: nats a token by which a text counts as hurt."""
    pairs = {name: (base.seen.outcomes[name], candidate.seen.outcomes[name]) for name in base.seen.outcomes}
    lost = tuple(name for name, (old, _) in pairs.items() if old.failed)
    failed = tuple(name for name, (old, new) in pairs.items() if new.failed and not old.failed)
    sound = {name: pair for name, pair in pairs.items() if not (pair[0].failed or pair[1].failed)}
    relative = sum(bound(shape, side.dtype, side.kv_dtype) for side in (base, candidate))
    rounding = 2 * relative * max(base.seen.spread, candidate.seen.spread)
    return QualityComparison(
        base=base.label,
        candidate=candidate.label,
        agreement=_agreement(sound, rounding, confidence),
        decode=_likelihood(sound, _forced, margin=margin, confidence=confidence),
        prefill=_likelihood(sound, _prompt, margin=margin, confidence=confidence),
        failed=failed,
        lost=lost,
        rounding=rounding,
    )


def mean_nll(scores: Sequence[Sequence[float]]) -> float:
    """Nats a token: the mean over texts of each text's mean. NaN without texts."""
    return -_mean([_mean(text) for text in scores])


Pairs = Mapping[str, tuple[TextOutcome, TextOutcome]]
Scores = Callable[[TextOutcome], Sequence[float]]


def _agreement(pairs: Pairs, rounding: float, confidence: float) -> Agreement:
    found = {name: _first_difference(name, old.greedy, new.greedy, rounding) for name, (old, new) in pairs.items()}
    differences = tuple(item for item in found.values() if item is not None)
    longest = max((len(old.greedy) for old, _ in pairs.values()), default=0)
    prefixes = [longest if item is None else item.index for item in found.values()]
    real = sum(not item.is_tie for item in differences)
    return Agreement(
        equal=wilson(len(found) - len(differences), len(found), confidence=confidence),
        equal_but_ties=wilson(len(found) - real, len(found), confidence=confidence),
        mean_prefix=_mean(prefixes),
        output_tokens=longest,
        differences=tuple(sorted(differences, key=lambda item: (item.is_tie, item.index))),
    )


def _first_difference(
    name: str, old: Sequence[Choice], new: Sequence[Choice], rounding: float
) -> FirstDifference | None:  # fmt: skip
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.token != after.token:
            return FirstDifference(
                text=name,
                index=index,
                base_token=before.token,
                candidate_token=after.token,
                base_margin=before.margin,
                candidate_margin=after.margin,
                # To swap two tokens, their gap must move from one side's to the other's negative.
                is_tie=before.gap(after.token) + after.gap(before.token) <= rounding,
            )
    return None


def _likelihood(pairs: Pairs, scores: Scores, *, margin: float, confidence: float) -> Likelihood:
    change = {name: _mean(scores(old)) - _mean(scores(new)) for name, (old, new) in pairs.items()}
    moves = {name: _largest_move(scores(old), scores(new)) for name, (old, new) in pairs.items()}
    return Likelihood(
        base=mean_nll([scores(old) for old, _ in pairs.values()]),
        candidate=mean_nll([scores(new) for _, new in pairs.values()]),
        difference=paired_mean(list(change.values()), confidence=confidence),
        hurt=hurt(list(change.values()), margin, confidence=confidence),
        worst=_largest(change),
        largest_move=_largest(moves),
        texts=len(pairs),
        tokens=sum(len(scores(old)) for old, _ in pairs.values()),
    )


def _largest_move(old: Sequence[float], new: Sequence[float]) -> float:
    return max((abs(before - after) for before, after in zip(old, new, strict=True)), default=0.0)


def _largest(values: Mapping[str, float]) -> tuple[str, float]:
    return max(values.items(), key=lambda item: item[1], default=("", math.nan))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _forced(outcome: TextOutcome) -> Sequence[float]:
    return outcome.forced


def _prompt(outcome: TextOutcome) -> Sequence[float]:
    return outcome.prompt
