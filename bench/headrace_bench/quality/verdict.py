"""Is the candidate no worse than the base, by more than a margin stated beforehand? Pure.

Three questions, each with an interval: likelihood by decode, likelihood by prefill, greedy agreement. The candidate is
non-inferior only if every answer says so, which needs no correction for asking more than once. It is inferior if one
answer says so: its whole interval lies beyond the margin. Between equal configs that happens in less than 2.5 % for
each likelihood, as the interval must miss not only the truth, 0, but the margin too; and never for the agreement, as
equal configs differ by ties alone. Agreement is asked because a mean can hide a fault: a loss on one text can be
made up by chance on another, but both outputs differ from the base's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace_bench.quality.comparison import Likelihood, QualityComparison
from headrace_core.evidence.means import equal_texts_needed, texts_needed

FEWEST_TEXTS = 16  # enough to show an agreement of 80 %, if all agree
# A text that loses this many margins points to a fault that hits few texts, which no mean can judge.
OUTLIER = 10.0


class QualityVerdict(StrEnum):
    """The conclusion that the intervals support."""

    NON_INFERIOR = "NonInferior"
    INFERIOR = "Inferior"
    INCONCLUSIVE = "Inconclusive"


EXIT_CODES = {QualityVerdict.NON_INFERIOR: 0, QualityVerdict.INFERIOR: 3, QualityVerdict.INCONCLUSIVE: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRules:
    """Stated before the run. `margin`: nats a token. `least_agreement`: share of texts, counting ties as equal."""

    margin: float = 0.01
    least_agreement: float = 0.8
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class QualityFinding:
    """One question's answer, and why."""

    verdict: QualityVerdict
    sentence: str


def judge(comparison: QualityComparison, rules: VerdictRules) -> QualityFinding:
    """The verdict, with a sentence that gives the reason."""
    findings = [
        _failures(comparison),
        _likelihood("decode", comparison.decode, comparison.candidate, rules),
        _likelihood("prefill", comparison.prefill, comparison.candidate, rules),
        _agreement(comparison, rules),
    ]
    decisive = worst([finding for finding in findings if finding is not None])
    if decisive.verdict is QualityVerdict.NON_INFERIOR:
        return QualityFinding(QualityVerdict.NON_INFERIOR, _passed(comparison, rules))
    return decisive


def worst(findings: Sequence[QualityFinding]) -> QualityFinding:
    """The first that is Inferior, else the first that is Inconclusive, else the first."""
    order = (QualityVerdict.INFERIOR, QualityVerdict.INCONCLUSIVE, QualityVerdict.NON_INFERIOR)
    return min(findings, key=lambda finding: order.index(finding.verdict))


def _passed(comparison: QualityComparison, rules: VerdictRules) -> str:
    decode, prefill = (max(0.0, item.difference.high) for item in (comparison.decode, comparison.prefill))
    return (
        f"{comparison.candidate} loses at most {decode:.2g} (decode) and {prefill:.2g} (prefill) nats a token against "
        f"{comparison.base}, {rules.confidence:.0%} sure; the margin is {rules.margin:g}."
    )


def _failures(comparison: QualityComparison) -> QualityFinding | None:
    if comparison.failed:
        return QualityFinding(
            QualityVerdict.INFERIOR,
            f"{len(comparison.failed)} of the texts fail on {comparison.candidate} but not on {comparison.base} "
            f"(logits that are not numbers), the first is {comparison.failed[0]}.",
        )
    if comparison.lost:
        return QualityFinding(
            QualityVerdict.INCONCLUSIVE,
            f"{len(comparison.lost)} of the texts fail on {comparison.base} itself (logits that are not numbers), the "
            f"first is {comparison.lost[0]}: there is nothing to compare with.",
        )
    return None


def _likelihood(path: str, seen: Likelihood, name: str, rules: VerdictRules) -> QualityFinding:
    if seen.texts < FEWEST_TEXTS:
        return QualityFinding(
            QualityVerdict.INCONCLUSIVE,
            f"{seen.texts} texts are too few to judge by: at least {FEWEST_TEXTS} are needed.",
        )
    interval, sure = seen.difference, f"{rules.confidence:.0%} sure"
    if interval.low > rules.margin:
        return QualityFinding(
            QualityVerdict.INFERIOR,
            f"By {path}, {name} loses at least {_nats(interval.low)} ({sure}), more than the margin of "
            f"{rules.margin:g}: perplexity is {math.expm1(interval.low):.1%} higher, or more.",
        )
    if interval.high >= rules.margin:
        return QualityFinding(QualityVerdict.INCONCLUSIVE, _undecided(path, seen, name, rules))
    if seen.worst[1] > OUTLIER * rules.margin:
        return QualityFinding(
            QualityVerdict.INCONCLUSIVE,
            f"By {path}, {name} is within the margin on average, but loses {_nats(seen.worst[1])} on the text "
            f"{seen.worst[0]}: a fault that hits few texts cannot be judged by a mean.",
        )
    return QualityFinding(QualityVerdict.NON_INFERIOR, f"By {path}, {name} is within the margin.")


def _undecided(path: str, seen: Likelihood, name: str, rules: VerdictRules) -> str:
    text = (
        f"By {path}, {name} may lose as much as {_nats(seen.difference.high)}, and as little as "
        f"{_nats(seen.difference.low)}; the margin of {rules.margin:g} lies between."
    )
    needed = texts_needed(seen.difference, rules.margin, seen.texts)
    if needed is None:
        return f"{text} More texts would not show it to be within the margin."
    return f"{text} About {needed} texts like these would decide ({seen.texts} now)."


def _agreement(comparison: QualityComparison, rules: VerdictRules) -> QualityFinding:
    share, name, least = comparison.agreement.equal_but_ties, comparison.candidate, rules.least_agreement
    seen = (
        f"{name} writes what {comparison.base} writes, ties aside, on {share.estimate:.0%} of the texts "
        f"({share.low:.0%} to {share.high:.0%})"
    )
    if share.high < least:
        return QualityFinding(QualityVerdict.INFERIOR, f"{seen}, which is less than {least:.0%}.")
    if share.low < least:
        needed = equal_texts_needed(least, confidence=rules.confidence)
        more = f" Even if all agree, {needed} texts are needed." if needed and needed > comparison.decode.texts else ""
        return QualityFinding(
            QualityVerdict.INCONCLUSIVE, f"{seen}; the least allowed, {least:.0%}, lies in between.{more}"
        )
    return QualityFinding(QualityVerdict.NON_INFERIOR, f"{seen}, which is at least {least:.0%}.")


def _nats(value: float) -> str:
    return f"{value:.2g} nats a token"
