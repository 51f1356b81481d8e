"""The SLO set: the thresholds of one request that must hold at once for it to count as good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from headrace_core.evidence.percentiles import nearest_rank

TARGETS = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSet:
    """Thresholds in seconds; None is not judged. Raises `ValueError` naming the invalid field."""

    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    itl_percentile: float = 99
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None

    def __post_init__(self) -> None:
        for target in TARGETS:
            _check_seconds(f"{target}_seconds", getattr(self, f"{target}_seconds"))
        if not _is_number(self.itl_percentile) or not 0 < self.itl_percentile <= 100:
            raise ValueError(f"slo.itl_percentile: must be above 0 and at most 100, got {self.itl_percentile!r:.40}")

    def threshold(self, target: str) -> float | None:
        """Seconds of `target`, one of `TARGETS` (the values of `Metric.slo`)."""
        if target not in TARGETS:
            raise ValueError(f"{target!r} is not an SLO target: use one of {', '.join(TARGETS)}")
        seconds: float | None = getattr(self, f"{target}_seconds")
        return seconds

    def judge(self, ttft: float | None, gaps: Sequence[float], e2e: float) -> bool:
        """Whether a finished request is good. `gaps` are the times between its tokens, all in seconds.

        A request without a first token (`ttft` None) is not good. With no gap, ITL and TPOT hold.
        """
        if ttft is None:
            return False
        return (
            _holds(ttft, self.ttft_seconds)
            and _holds(e2e, self.e2e_seconds)
            and (not gaps or self._gaps_hold(gaps))
        )  # fmt: skip

    def _gaps_hold(self, gaps: Sequence[float]) -> bool:
        if self.itl_seconds is not None and not _holds(nearest_rank(gaps, self.itl_percentile), self.itl_seconds):
            return False
        return self.tpot_seconds is None or _holds(math.fsum(gaps) / len(gaps), self.tpot_seconds)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> SloSet:
        """Read the form of `engine.json`. Raises `ValueError` for an unknown key or a bad value."""
        known = {item.name for item in fields(cls)}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ValueError(f"slo: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
        return cls(**values)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, float | None]:
        """The form of `engine.json`."""
        return asdict(self)


def _holds(value: float, threshold: float | None) -> bool:
    return threshold is None or value <= threshold  # NaN does not hold


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _check_seconds(name: str, value: object) -> None:
    if value is not None and not (_is_number(value) and value > 0):  # type: ignore[operator]
        raise ValueError(f"slo.{name}: must be a number of seconds above 0, or null, got {value!r:.40}")
