"""The last rung: from paired windows on fresh seeds to a verdict, with a message that gives its evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_api.v1alpha1.record_codec import StudyRecords
from headrace_api.v1alpha1.records import Effect, StudyVerdict, VerificationRecord
from headrace_api.v1alpha1.tuningrun import Objective
from headrace_core.evidence.counts import Counts, sum_of
from headrace_core.evidence.intervals import Interval
from headrace_core.evidence.verdict import RateKind, WindowPair, paired_ratio
from headrace_tuner.ladder.objective import StudyGoal
from headrace_tuner.ladder.trials import MEASURED, baseline_of, pool

RATES = {Objective.GOODPUT: RateKind.GOODPUT, Objective.THROUGHPUT: RateKind.THROUGHPUT}
Pairs = list[tuple[VerificationRecord, VerificationRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The verdict of the verification, with a sentence that explains it."""

    verdict: StudyVerdict
    effect: Effect
    message: str


def verify(goal: StudyGoal, records: StudyRecords, *, min_effect: float, confidence: float) -> VerificationResult:
    """Compare the windows of the complete blocks. Raises `ValueError` for fewer than two."""
    pairs = complete_blocks(records.windows)
    objective = _objective(goal, records)
    windows = window_pairs(pairs)
    ratio = paired_ratio(windows, rate=RATES[objective], confidence=confidence)
    verdict = _verdict(goal, records, windows, ratio, min_effect)
    numbers = (
        f"{objective.value.lower()} of the winner is {ratio.estimate:.2f} times the baseline's ({confidence:.0%} "
        f"interval {ratio.low:.2f} to {ratio.high:.2f}, {len(pairs)} paired blocks on fresh seeds)"
    )
    effect = Effect(ratio=ratio.estimate, low=ratio.low, high=ratio.high)
    return VerificationResult(verdict=verdict, effect=effect, message=f"{numbers}: {_meaning(verdict, min_effect)}")


def complete_blocks(windows: Iterable[VerificationRecord]) -> Pairs:
    """Blocks in which both windows count, each as (baseline, winner)."""
    found: dict[int, dict[bool, VerificationRecord]] = {}
    for item in windows:
        if item.state in MEASURED:
            found.setdefault(item.number // 2, {})[item.winner] = item
    return [(pair[False], pair[True]) for _, pair in sorted(found.items()) if len(pair) == 2]


def window_pairs(blocks: Pairs) -> list[WindowPair]:
    """Blocks in the comparison's form. Halves recorded without a length are assumed to be equally long."""
    halves = [half for block in blocks for record in block for half in record.halves]
    timed = all(half.seconds is not None for half in halves)

    def parts(record: VerificationRecord) -> tuple[Counts, ...]:
        return tuple(
            Counts(
                good=half.good,
                requests=half.requests,
                seconds=half.seconds if timed and half.seconds is not None else 1.0,
                output_tokens=half.tokens,
            )
            for half in record.halves
        )

    return [WindowPair(baseline=parts(baseline), candidate=parts(winner)) for baseline, winner in blocks]


def decide(ratio: Interval, *, min_effect: float, any_feasible: bool) -> StudyVerdict:
    """The verdict that an interval supports. `any_feasible`: whether any config met the attainment."""
    worthwhile = 1 + min_effect
    if ratio.low > worthwhile:
        return StudyVerdict.IMPROVED
    if not any_feasible:
        return StudyVerdict.NO_FEASIBLE_CONFIG
    return StudyVerdict.KEEP_BASELINE if ratio.high < worthwhile else StudyVerdict.INCONCLUSIVE


def _objective(goal: StudyGoal, records: StudyRecords) -> Objective:
    """Throughput is compared between configs that meet the SLO; a baseline that misses it is compared by goodput."""
    baseline = baseline_of(goal, records)
    return goal.objective if baseline is None or baseline.feasible else Objective.GOODPUT


def _verdict(
    goal: StudyGoal, records: StudyRecords, pairs: Sequence[WindowPair], ratio: Interval, min_effect: float
) -> StudyVerdict:  # fmt: skip
    winner_meets = _attainment(pairs) >= goal.attainment
    feasible = winner_meets or any(item.feasible for item in pool(goal, records.trials))
    verdict = decide(ratio, min_effect=min_effect, any_feasible=feasible)
    if verdict is StudyVerdict.IMPROVED and goal.objective is Objective.THROUGHPUT and not winner_meets:
        return StudyVerdict.INCONCLUSIVE
    return verdict


def _attainment(pairs: Sequence[WindowPair]) -> float:
    """Share of the candidate's requests that were good; 0 where there were none."""
    counts = sum_of([part for pair in pairs for part in pair.candidate])
    return counts.good / max(1.0, counts.requests)


def _meaning(verdict: StudyVerdict, min_effect: float) -> str:
    match verdict:
        case StudyVerdict.IMPROVED:
            return f"better by more than minEffect {min_effect:.0%}"
        case StudyVerdict.KEEP_BASELINE:
            return f"a gain of minEffect {min_effect:.0%} is excluded, so the baseline stays"
        case StudyVerdict.NO_FEASIBLE_CONFIG:
            return "not better beyond the noise, and no config met the SLO's attainment"
        case _:
            return "the noise hides whether it is better; raise verification.blocks or workload.duration"
