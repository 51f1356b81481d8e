"""What a run of load showed, from its records: counts, rates, percentiles. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from headrace_core.slo import nearest_rank
from headrace_tuner.load import RequestRecord

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank percentiles in seconds, and how many values they stand on."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Latencies are of requests that got their whole answer; errors are counted, not timed."""

    requests: int
    completed: int
    errors: dict[str, int]
    first_error: str
    seconds: float
    requests_per_second: float
    output_tokens: int
    output_tokens_per_second: float
    latency_seconds: dict[str, Distribution]
    send_lag_seconds: Distribution | None


def summarize(records: Sequence[RequestRecord], *, duration: float) -> Summary:
    """Summary of a run whose arrivals took `duration` seconds; rates are over the time until the last token."""
    complete = [record for record in records if record.error is None]
    ends = (record.planned_at + (record.e2e or 0.0) for record in complete)
    seconds = max(duration, *ends) if complete else duration
    tokens = sum(record.output_tokens for record in records)  # also of requests that failed later
    samples = {
        "ttft": [record.ttft for record in complete if record.ttft is not None],
        "itl": [gap for record in complete for gap in record.gaps],
        "tpot": [math.fsum(record.gaps) / len(record.gaps) for record in complete if record.gaps],
        "e2e": [record.e2e for record in complete if record.e2e is not None],
    }
    return Summary(
        requests=len(records),
        completed=len(complete),
        errors=dict(sorted(Counter(record.error for record in records if record.error).items())),
        first_error=next((f"{item.error}: {item.detail}" for item in records if item.error), ""),
        seconds=seconds,
        requests_per_second=len(complete) / seconds,
        output_tokens=tokens,
        output_tokens_per_second=tokens / seconds,
        latency_seconds={name: found for name, values in samples.items() if (found := distribution(values))},
        send_lag_seconds=distribution(record.lag for record in records),
    )


def distribution(values: Iterable[float]) -> Distribution | None:
    """Percentiles of `values`; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTILES)
    return Distribution(len(ordered), p50, p95, p99, ordered[-1])


def to_json(summary: Summary) -> dict[str, object]:
    """JSON-ready form."""
    return asdict(summary)
