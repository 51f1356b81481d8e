"""Measured step times: the output of `headrace bench engine --json`, interpolated between its points. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.scheduler.events import StepPlan

TABLES = {"decode": "decode_step_seconds", "prefill": "prefill_step_seconds"}


class CalibrationError(HeadraceError):
    """The input is not the output of `headrace bench engine --json`."""


@dataclass(frozen=True)
class Calibration:
    """Step times in seconds: `decode` by sequences in the step, `prefill` by tokens of one chunk, at least one of each.

    `facts` is the rest of the output: model, device, dtype, threads, ...
    """

    decode: Mapping[int, float]
    prefill: Mapping[int, float]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: object) -> Calibration:
        """Read the output of `headrace bench engine --json`. Raises `CalibrationError`."""
        try:
            if not isinstance(data, dict):
                raise TypeError(f"an object is expected, got {data!r:.60}")
            tables = {name: _table(data[key]) for name, key in TABLES.items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CalibrationError(
                f"this is not a calibration; `headrace bench engine MODEL --json` makes one: {error!r}"
            ) from error
        facts = {key: value for key, value in data.items() if key not in TABLES.values()}
        return cls(tables["decode"], tables["prefill"], facts)

    def decode_step(self, sequences: float) -> float:
        """Seconds of a step that decodes that many sequences."""
        return interpolate(self.decode, sequences)

    def prefill_step(self, tokens: float) -> float:
        """Seconds of a step that prefills one chunk of that many tokens."""
        return interpolate(self.prefill, tokens)

    def prompt_seconds(self, tokens: int, chunk: int) -> float:
        """Seconds to prefill one prompt in chunks, alone."""
        full, rest = divmod(tokens, chunk)
        return full * self.prefill_step(chunk) + (self.prefill_step(rest) if rest else 0.0)

    def rows_step(self, rows: float) -> float:
        """Seconds of a step with that many rows, each a decoding sequence or a token of a prompt."""
        return interpolate(self._by_rows, rows)

    def step_seconds(self, plan: StepPlan) -> float:
        """A step-time model for the simulator: by its rows, but never less than its decodes alone.

        Measured with chunks of 64 and 128 tokens beside 4 to 16 decodes (SmolLM2-135M, fp32, one thread): the rows
        alone predict 0.92 to 1.02 of the truth. With as many decodes as prompt tokens they predict too little, as each
        decode reads its own context: 0.75 with 16 and 16.
        """
        decodes = plan.num_decode_tokens
        rows = self.rows_step(plan.num_tokens)
        return max(rows, self.decode_step(decodes)) if decodes else rows

    @cached_property
    def _by_rows(self) -> Mapping[int, float]:
        largest = max(self.decode)
        return dict(self.decode) | {rows: seconds for rows, seconds in self.prefill.items() if rows > largest}


def interpolate(points: Mapping[int, float], at: float) -> float:
    """Piecewise linear through the points, flat before the first, beyond the last along its slope where that rises.

    One point alone stands for a cost in proportion.
    """
    ordered = sorted(points.items())
    first, seconds = ordered[0]
    if len(ordered) == 1:
        return seconds * max(1.0, at / first)
    if at <= first:
        return seconds
    (left, low), (right, high) = next((pair for pair in pairwise(ordered) if at <= pair[1][0]), tuple(ordered[-2:]))
    if at > right:
        return high + max(0.0, high - low) * (at - right) / (right - left)
    return low + (high - low) * (at - left) / (right - left)


def _table(raw: Mapping[str, Any]) -> dict[int, float]:
    table = {int(key): float(value) for key, value in raw.items()}
    if not table or min(table) < 1 or not min(table.values()) > 0:
        raise ValueError(f"a table of step times is expected, got {raw!r}")
    return table
