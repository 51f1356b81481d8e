"""Verdicts: what each needs, what each says, and how often each is wrong."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace_bench.quality.comparison import compare
from headrace_bench.quality.verdict import (
    EXIT_CODES,
    FEWEST_TEXTS,
    QualityFinding,
    QualityVerdict,
    VerdictRules,
    judge,
    worst,
)
from headrace_core.evidence.intervals import Interval
from headrace_core.observations import Choice

RULES = VerdictRules(margin=0.01)
TEXTS = 46


def test_equal_sides_are_non_inferior(quality: Any) -> None:
    finding = judge(quality.compared([0.0] * TEXTS), RULES)
    assert finding.verdict is QualityVerdict.NON_INFERIOR
    assert (
        "loses at most 0 (decode) and 0 (prefill) nats a token against A, 95% sure; the margin is 0.01"
        in finding.sentence
    )


def test_a_loss_beyond_the_margin_is_inferior(quality: Any) -> None:
    finding = judge(quality.compared([0.05 + at % 3 * 0.001 for at in range(TEXTS)]), RULES)
    assert finding.verdict is QualityVerdict.INFERIOR
    assert "loses at least 0.051 nats a token (95% sure), more than the margin of 0.01" in finding.sentence


def test_a_loss_within_the_margin_is_non_inferior_and_a_gain_too(quality: Any) -> None:
    for loss in (0.005, -0.05):
        finding = judge(quality.compared([loss + at % 3 * 0.001 for at in range(TEXTS)]), RULES)
        assert finding.verdict is QualityVerdict.NON_INFERIOR


def test_an_interval_over_the_margin_says_how_many_texts_would_decide(quality: Any) -> None:
    finding = judge(quality.compared([0.05 * (-1) ** at for at in range(TEXTS)]), RULES)
    assert finding.verdict is QualityVerdict.INCONCLUSIVE
    assert "the margin of 0.01 lies between" in finding.sentence
    assert "texts like these would decide (46 now)" in finding.sentence
    hopeless = judge(quality.compared([0.011 + 0.05 * (-1) ** at for at in range(TEXTS)]), RULES)
    assert "More texts would not show it to be within the margin" in hopeless.sentence


def test_few_texts_decide_nothing(quality: Any) -> None:
    assert judge(quality.compared([0.0] * (FEWEST_TEXTS - 1)), RULES).verdict is QualityVerdict.INCONCLUSIVE
    assert judge(quality.compared([0.0] * FEWEST_TEXTS), RULES).verdict is QualityVerdict.NON_INFERIOR
    none = judge(quality.compared([]), RULES)
    assert (none.verdict, none.sentence) == (
        QualityVerdict.INCONCLUSIVE, f"0 texts are too few to judge by: at least {FEWEST_TEXTS} are needed."
    )  # fmt: skip


def test_one_text_that_is_ruined_blocks_what_the_mean_would_pass(quality: Any) -> None:
    finding = judge(quality.compared([0.11, *([-0.01] * 400)]), RULES)
    assert finding.verdict is QualityVerdict.INCONCLUSIVE
    assert "loses 0.11 nats a token on the text 0" in finding.sentence


def test_a_loss_by_prefill_alone_counts(quality: Any) -> None:
    base = {str(at): quality.outcome(2.0) for at in range(TEXTS)}
    candidate = {name: quality.outcome(2.0, prompt=[2.1 + 0.001 * int(name)]) for name in base}
    finding = judge(compare(quality.side("A", base), quality.side("B", candidate), quality.shape, margin=0.01), RULES)
    assert finding.verdict is QualityVerdict.INFERIOR
    assert finding.sentence.startswith("By prefill, B loses")


def _failing(quality: Any, *, base: bool, candidate: bool) -> QualityFinding:
    sides = []
    for label, fails in (("A", base), ("B", candidate)):
        outcomes = {str(at): quality.outcome(2.0, failed=fails and at == 7) for at in range(TEXTS)}
        sides.append(quality.side(label, outcomes))
    return judge(compare(*sides, quality.shape, margin=0.01), RULES)


def test_a_text_that_fails_on_the_candidate_alone_is_inferior(quality: Any) -> None:
    finding = _failing(quality, base=False, candidate=True)
    assert finding.verdict is QualityVerdict.INFERIOR
    assert "1 of the texts fail on B but not on A" in finding.sentence
    assert "the first is 7" in finding.sentence


def test_a_text_that_fails_on_the_base_cannot_be_compared(quality: Any) -> None:
    for candidate in (False, True):
        assert _failing(quality, base=True, candidate=candidate).verdict is QualityVerdict.INCONCLUSIVE


def _agreeing(quality: Any, equal: int, *, gap: float = 1.0) -> QualityFinding:
    same, other = Choice((5, 6), (3.0, 3.0 - gap)), Choice((6, 5), (3.0, 3.0 - gap))
    base = {str(at): quality.outcome(2.0, greedy=[same]) for at in range(TEXTS)}
    candidate = {name: quality.outcome(2.0, greedy=[same if int(name) < equal else other]) for name in base}
    return judge(compare(quality.side("A", base), quality.side("B", candidate), quality.shape, margin=0.01), RULES)


@pytest.mark.parametrize(
    ("equal", "verdict"),
    [
        (46, QualityVerdict.NON_INFERIOR),
        (43, QualityVerdict.NON_INFERIOR),
        (40, QualityVerdict.INCONCLUSIVE),
        (25, QualityVerdict.INFERIOR),
    ],
)
def test_outputs_that_differ_where_the_mean_does_not(equal: int, verdict: QualityVerdict, quality: Any) -> None:
    assert _agreeing(quality, equal).verdict is verdict


def test_a_least_agreement_that_so_few_texts_cannot_show_says_how_many_can(quality: Any) -> None:
    finding = judge(quality.compared([0.0] * TEXTS), VerdictRules(least_agreement=0.95))
    assert finding.verdict is QualityVerdict.INCONCLUSIVE
    assert "Even if all agree, 73 texts are needed" in finding.sentence
    assert (
        judge(quality.compared([0.0] * 73), VerdictRules(least_agreement=0.95)).verdict is QualityVerdict.NON_INFERIOR
    )
    assert "texts are needed" not in judge(quality.compared([0.0] * TEXTS), VerdictRules(least_agreement=1)).sentence


def test_outputs_that_part_by_a_tie_are_no_loss(quality: Any) -> None:
    assert _agreeing(quality, 10, gap=1e-9).verdict is QualityVerdict.NON_INFERIOR


def test_the_worst_of_several_findings_stands() -> None:
    good, bad, open_ = (QualityFinding(verdict, verdict.value) for verdict in QualityVerdict)
    assert worst([good, open_, bad]) is bad
    assert worst([good, open_]) is open_
    assert worst([good]) is good
    assert sorted(EXIT_CODES.values()) == [0, 3, 4]


# How often a verdict is wrong, in simulations of texts' differences

WORLDS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 1),
    "heavy tails": lambda draw: draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3),
    "skewed": lambda draw: draw.expovariate(1) - 1,
    "mostly exact": lambda draw: draw.gauss(0, 3) if draw.random() < 0.1 else 0.0,
}


def verdicts(
    quality: Any, world: str, *, mean: float, spread: float, texts: int, runs: int = 200
) -> dict[QualityVerdict, float]:
    """Shares of verdicts where texts differ by `mean` margins, with a standard deviation of about `spread` margins."""
    draw = random.Random(f"{world} {mean} {texts}")
    counts = dict.fromkeys(QualityVerdict, 0)
    for _ in range(runs):
        differences = [RULES.margin * (mean + spread * WORLDS[world](draw)) for _ in range(texts)]
        counts[judge(quality.compared(differences), RULES).verdict] += 1
    return {verdict: count / runs for verdict, count in counts.items()}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("texts", [FEWEST_TEXTS, TEXTS])
def test_equal_configs_are_seldom_called_inferior(world: str, texts: int, quality: Any) -> None:
    # A spread of five margins: the hardest case, where the interval is wide and wanders.
    assert verdicts(quality, world, mean=0, spread=5, texts=texts)[QualityVerdict.INFERIOR] <= 0.05


@pytest.mark.parametrize("world", ["normal", "heavy tails"])
@pytest.mark.parametrize("texts", [FEWEST_TEXTS, TEXTS])
def test_a_loss_of_just_the_margin_is_seldom_decided(world: str, texts: int, quality: Any) -> None:
    shares = verdicts(quality, world, mean=1, spread=1, texts=texts)
    assert shares[QualityVerdict.NON_INFERIOR] <= 0.05
    assert shares[QualityVerdict.INFERIOR] <= 0.05


@pytest.mark.parametrize("world", WORLDS)
def test_a_real_loss_is_found_and_equal_configs_pass(world: str, quality: Any) -> None:
    worse = verdicts(quality, world, mean=3, spread=1.5, texts=TEXTS)
    assert worse[QualityVerdict.INFERIOR] >= 0.95
    assert worse[QualityVerdict.NON_INFERIOR] == 0
    assert verdicts(quality, world, mean=0, spread=1, texts=TEXTS)[QualityVerdict.NON_INFERIOR] >= 0.9


def test_a_fault_that_ruins_few_texts_seldom_passes(quality: Any) -> None:
    draw, passed = random.Random(1), 0
    for _ in range(200):
        # One text in ten loses about a nat a token, which is 100 margins; ten margins on the mean.
        differences = [draw.expovariate(1) if draw.random() < 0.1 else draw.gauss(0, 0.001) for _ in range(TEXTS)]
        passed += judge(quality.compared(differences), RULES).verdict is QualityVerdict.NON_INFERIOR
    assert passed / 200 <= 0.05


def test_rules_are_stated_with_the_interval(quality: Any) -> None:
    finding = judge(quality.compared([0.0] * TEXTS), VerdictRules(margin=0.5, confidence=0.9))
    assert "90% sure; the margin is 0.5" in finding.sentence
    assert quality.compared([0.0] * TEXTS).decode.difference == Interval(0.0, 0.0, 0.0)
