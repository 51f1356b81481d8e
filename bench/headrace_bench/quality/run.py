"""From observations to a result: the candidate beside the base, and each beside the reference. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_bench.quality.comparison import QualityComparison, compare
from headrace_bench.quality.verdict import QualityFinding, VerdictRules, judge, worst
from headrace_core.observations import ModelWidths, ObservationRequest, Observations, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """The request to the engine, and the rules that judge its answer."""

    request: ObservationRequest
    rules: VerdictRules


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """The sides, each pair of them with its finding, and the finding over all pairs.

    `words`: the text of each token at which outputs first differ.
    """

    model: str
    machine: Mapping[str, Any]
    sides: tuple[Side, ...]
    pairs: tuple[tuple[QualityComparison, QualityFinding], ...]
    decision: QualityFinding
    words: Mapping[int, str]


def evaluate(plan: QualityPlan, seen: Observations) -> QualityResult:
    """Compare every pair and decide."""
    done = seen.sides[: len(plan.request.sides)]
    pairs = list(itertools.pairwise(done))
    pairs += [(reference, side) for reference in seen.sides[len(done) :] for side in done]
    judged = tuple(_judge(base, candidate, seen.widths, plan.rules) for base, candidate in pairs)
    return QualityResult(
        model=seen.model,
        machine=seen.machine,
        sides=seen.sides,
        pairs=judged,
        decision=worst([finding for _, finding in judged]),
        words=_words(judged, seen.words),
    )


def _judge(
    base: Side, candidate: Side, widths: ModelWidths, rules: VerdictRules
) -> tuple[QualityComparison, QualityFinding]:
    comparison = compare(base, candidate, widths, margin=rules.margin, confidence=rules.confidence)
    return comparison, judge(comparison, rules)


def _words(
    pairs: Sequence[tuple[QualityComparison, QualityFinding]], words: Mapping[int, str]
) -> Mapping[int, str]:  # fmt: skip
    parted = (item for comparison, _ in pairs for item in comparison.agreement.differences)
    tokens = {token for item in parted for token in (item.base_token, item.candidate_token)}
    return {token: words[token] for token in sorted(tokens)}
