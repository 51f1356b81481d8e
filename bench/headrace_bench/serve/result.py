"""The results of a run, from its records: latencies with their counts, rates, goodput, errors by kind. Pure.

Only requests planned inside the measured window count; their latencies only if the whole answer came, while goodput
has all of them in its denominator. Rates are given twice: inside the window, and until the last answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from headrace_bench.serve.steady import Steadiness, steadiness
from headrace_client.load.client import RequestRecord
from headrace_core.evidence.intervals import wilson
from headrace_core.evidence.percentiles import Distribution, distribution
from headrace_core.evidence.slo import SloSet

SCHEMA = "headrace.bench.serve/1"  # of the result file
NO_SLO = SloSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWindow:
    """What was measured: arrivals from `begin` to `end`, seconds since the start of the load."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """Per second. `requests` are answered ones, `tokens` generated ones."""

    seconds: float
    requests: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met the whole SLO, of all that were planned, with the 95 % interval of their share."""

    good: int
    planned: int
    per_second: float
    attainment: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLengths:
    """Means in tokens of answered requests; `short_answers` ended before the length that was asked for.

    `chunks` per token below 1 means that the server sends several tokens at once. `cached`: share of the prompt tokens
    that the server says it had cached, where it says so.
    """

    prompt: float
    output: float
    short_answers: int
    chunks_per_token: float | None
    counted: bool
    cached: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """One run."""

    requests: int
    warmup_requests: int
    completed: int
    errors: dict[str, int]
    first_error: str
    offered_per_second: float | None
    in_window: MeasuredRates | None
    until_last: MeasuredRates
    output_tokens: int
    latency_seconds: dict[str, Distribution]
    send_lag_seconds: Distribution | None
    goodput: Goodput | None
    lengths: MeanLengths | None
    steadiness: Steadiness


def evaluate(records: Sequence[RequestRecord], window: ServeWindow, *, slo: SloSet = NO_SLO) -> ServeResult:
    """The result of a run with `records` of all its requests, those of the warm-up too."""
    # The last arrival of a plan may fall on the end itself.
    inside = [record for record in records if window.begin <= record.planned_at <= window.end]
    complete = [record for record in inside if record.error is None]
    judged = slo != NO_SLO
    seconds = window.seconds
    return ServeResult(
        requests=len(inside),
        warmup_requests=len(records) - len(inside),
        completed=len(complete),
        errors=dict(sorted(Counter(record.error for record in inside if record.error).items())),
        first_error=next((f"{item.error}: {item.detail}" for item in inside if item.error), ""),
        offered_per_second=len(inside) / seconds if seconds > 0 else None,
        in_window=rates_inside(records, window) if seconds > 0 else None,
        until_last=_rates_until_last(inside, window),
        output_tokens=sum(record.output_tokens for record in inside),
        latency_seconds=latencies(complete),
        send_lag_seconds=distribution(record.lag for record in inside),
        goodput=_goodput(inside, slo, _span(inside, window)) if judged and inside else None,
        lengths=_lengths(complete),
        steadiness=steadiness(records, begin=window.begin, end=window.end),
    )


def latencies(complete: Sequence[RequestRecord]) -> dict[str, Distribution]:
    """Distributions in seconds. `itl` is of all gaps together, `worst_gap` of the longest gap of each request."""
    samples: dict[str, list[float]] = {
        "ttft": [record.ttft for record in complete if record.ttft is not None],
        "itl": [gap for record in complete for gap in record.gaps],
        "worst_gap": [max(record.gaps) for record in complete if record.gaps],
        "tpot": [record.tpot for record in complete if record.tpot is not None],
        "e2e": [record.e2e for record in complete if record.e2e is not None],
    }
    return {name: found for name, values in samples.items() if (found := distribution(values))}


def is_good(record: RequestRecord, slo: SloSet) -> bool:
    """Whether a request met every threshold. TPOT is judged by tokens: a chunk may hold several."""
    if record.error is not None or record.ttft is None or record.e2e is None:
        return False
    without_tpot = SloSet(
        ttft_seconds=slo.ttft_seconds, itl_seconds=slo.itl_seconds, itl_percentile=slo.itl_percentile,
        e2e_seconds=slo.e2e_seconds,
    )  # fmt: skip
    slow = slo.tpot_seconds is not None and record.tpot is not None and record.tpot > slo.tpot_seconds
    return not slow and without_tpot.judge(record.ttft, record.gaps, record.e2e)


def to_json(result: ServeResult) -> dict[str, Any]:
    """JSON-ready form. The flat rates are those until the last answer."""
    flat = {
        "seconds": result.until_last.seconds,
        "requests_per_second": result.until_last.requests,
        "output_tokens_per_second": result.until_last.tokens,
    }
    return asdict(result) | flat


def _span(inside: Sequence[RequestRecord], window: ServeWindow) -> float:
    return window.seconds or _rates_until_last(inside, window).seconds


def _rates_until_last(inside: Sequence[RequestRecord], window: ServeWindow) -> MeasuredRates:
    complete = [record for record in inside if record.error is None]
    ends = (record.planned_at + (record.e2e or 0.0) - window.begin for record in complete)
    seconds = max([window.seconds, *ends])
    tokens = sum(record.output_tokens for record in inside)  # including requests that failed later
    per = 1 / seconds if seconds > 0 else 0.0
    return MeasuredRates(seconds=seconds, requests=len(complete) * per, tokens=tokens * per)


def rates_inside(records: Sequence[RequestRecord], window: ServeWindow) -> MeasuredRates:
    """Answers and tokens that came inside the window, of any request: in a steady state as many enter as leave it."""
    ends = (record.planned_at + record.e2e for record in records if record.error is None and record.e2e is not None)
    answered = sum(window.begin < end <= window.end for end in ends)
    tokens = math.fsum(_tokens_inside(record, window) for record in records)
    return MeasuredRates(seconds=window.seconds, requests=answered / window.seconds, tokens=tokens / window.seconds)


def _tokens_inside(record: RequestRecord, window: ServeWindow) -> float:
    if record.ttft is None:
        return 0.0
    first = record.planned_at + record.ttft
    times = list(accumulate(record.gaps, initial=first))
    share = sum(window.begin < at <= window.end for at in times) / len(times)
    return share * record.output_tokens


def _goodput(inside: Sequence[RequestRecord], slo: SloSet, seconds: float) -> Goodput:
    good = sum(is_good(record, slo) for record in inside)
    share = wilson(good, len(inside))
    return Goodput(
        good=good,
        planned=len(inside),
        per_second=good / seconds if seconds > 0 else 0.0,
        attainment=share.estimate,
        low=share.low,
        high=share.high,
    )


def _lengths(complete: Sequence[RequestRecord]) -> MeanLengths | None:
    if not complete:
        return None
    counted = [record for record in complete if record.counted and record.output_tokens > 0]
    chunks = sum(len(record.gaps) + 1 for record in counted)
    told = [record for record in complete if record.cached_tokens is not None]
    prompts = sum(record.prompt_tokens for record in told)
    return MeanLengths(
        prompt=math.fsum(record.prompt_tokens for record in complete) / len(complete),
        output=math.fsum(record.output_tokens for record in complete) / len(complete),
        short_answers=sum(record.output_tokens < record.wanted_tokens for record in complete if record.counted),
        chunks_per_token=chunks / sum(record.output_tokens for record in counted) if counted else None,
        counted=len(counted) == len(complete),
        cached=sum(record.cached_tokens or 0 for record in told) / prompts if prompts else None,
    )
