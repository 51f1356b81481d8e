"""Whether the modes gave the same answers: greedy answers to the same prompts, compared in pairs. Pure.

The requests of the low load are the same in every repetition, so each mode is also compared with itself: differences
there come from the other requests in the same steps, not from the mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import LevelRun

AROUND = 24  # characters of each answer shown after the first difference


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifference:
    """The first place where two answers differ: the request, the character, and how each continues."""

    level: Level
    number: int
    at: int
    length: int
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Two modes: how many answers both gave in full, and how many of those are equal."""

    first: Mode
    second: Mode
    compared: int
    equal: int
    difference: AnswerDifference | None


def compare_answers(runs: Sequence[LevelRun]) -> list[Equality]:
    """Every pair of modes, then each mode with itself where it was visited twice under the same plan."""
    answers = {mode: _answers([run for run in runs if run.mode is mode]) for mode in Mode}
    found = [_compare(first, second, answers[first], answers[second]) for first, second in combinations(Mode, 2)]
    for mode in Mode:
        low = [run for run in runs if run.mode is mode and run.level is Level.LOW]
        if len(low) >= 2:
            once, again = ({(Level.LOW, 0, key[2]): text for key, text in _answers([run]).items()} for run in low[:2])
            found.append(_compare(mode, mode, once, again))
    return [item for item in found if item.compared]


Key = tuple[Level, int, int]


def _answers(runs: Sequence[LevelRun]) -> dict[Key, str]:
    """Texts of whole answers by level, repetition and number. The warm-up's count too: their prompts are the same."""
    return {
        (run.level, run.repetition, record.number): record.text
        for run in runs
        if run.level is not Level.FULL
        for record in run.records
        if record.error is None
    }


def _compare(first: Mode, second: Mode, old: Mapping[Key, str], new: Mapping[Key, str]) -> Equality:
    keys = sorted(old.keys() & new.keys())
    parted = [key for key in keys if old[key] != new[key]]
    difference = _difference(parted[0], old[parted[0]], new[parted[0]]) if parted else None
    return Equality(
        first=first, second=second, compared=len(keys), equal=len(keys) - len(parted), difference=difference
    )


def _difference(key: Key, old: str, new: str) -> AnswerDifference:
    at = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return AnswerDifference(
        level=key[0],
        number=key[2],
        at=at,
        length=max(len(old), len(new)),
        first=old[at : at + AROUND],
        second=new[at : at + AROUND],
    )
