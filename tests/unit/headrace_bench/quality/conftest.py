"""Sides made of numbers."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_bench.quality.comparison import QualityComparison, compare
from headrace_core.observations import Choice, ModelWidths, Number, Observed, Side, Tally, TextOutcome

SHAPE = ModelWidths(layers=2, width=64)


def side(label: str, outcomes: Mapping[str, TextOutcome], *, spread: float = 1.0, kv: Number = Number.FLOAT32) -> Side:
    """A side that saw `outcomes`."""
    seen = Observed(outcomes=outcomes, spread=spread, tally=Tally())
    return Side(label=label, about="made up", dtype=Number.FLOAT32, kv_dtype=kv, seen=seen)


def outcome(
    nll: float | Sequence[float] = 1.0, *, greedy: Sequence[Choice] = (), prompt: Sequence[float] | None = None,
    failed: bool = False,
) -> TextOutcome:  # fmt: skip
    """An outcome whose forced tokens have these negative log-likelihoods, and its prompt's the same or others."""
    forced = tuple(-value for value in ([nll] if isinstance(nll, float) else nll))
    scores = forced if prompt is None else tuple(-value for value in prompt)
    return TextOutcome(greedy=tuple(greedy), forced=forced, prompt=scores, failed=failed)


def compared(differences: Sequence[float], *, margin: float = 0.01, spread: float = 1.0) -> QualityComparison:
    """A base at 2 nats a token everywhere, and a candidate that is worse by `differences`, decode and prefill."""
    base = {str(at): outcome(2.0) for at in range(len(differences))}
    candidate = {str(at): outcome(2.0 + value) for at, value in enumerate(differences)}
    return compare(side("A", base, spread=spread), side("B", candidate, spread=spread), SHAPE, margin=margin)


@pytest.fixture(scope="session")
def quality() -> Any:
    """The functions of this file, for tests."""
    return SimpleNamespace(side=side, outcome=outcome, compared=compared, shape=SHAPE)
