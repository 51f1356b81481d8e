"""Reads a trial's window from Prometheus and compares it with what the client saw.

Each window has its own revision, patched in as it begins: the engine labels each request by the config under which it
arrived, so the series of that revision hold the window's requests, all of them and no others.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_api.v1alpha1.records import Measures
from headrace_client.errors import PrometheusError
from headrace_client.load.client import ErrorKind, RequestRecord
from headrace_client.prom import Prometheus, PromSample
from headrace_client.window_reader import read_window, selector
from headrace_core import metric_names as metrics
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.percentiles import distribution
from headrace_core.evidence.windows import VoidKind, WindowVoidError, histogram_quantile
from headrace_tuner.errors import TrialVoid

IDENTITY = ("namespace", "pod", "instance", "job")
SCRAPE_TIMEOUT = 20.0  # seconds; scrape intervals up to 15 s are common
LOST = frozenset({ErrorKind.CONNECT, ErrorKind.RESET, ErrorKind.PROTOCOL, ErrorKind.WRONG_LENGTH})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReading:
    """One measured window. Latencies in seconds, NaN where nothing was observed.

    `counts.requests` counts planned requests, and `counts.output_tokens` includes those after the last arrival;
    `throughput` is output tokens per second while the load was on.
    """

    counts: Counts
    throughput: float
    p95: Mapping[str, float]
    halves: tuple[Counts, ...] = ()

    def measures(self) -> Measures:
        """In the form of the records."""
        counts = self.counts
        return Measures(
            goodput=counts.goodput,
            throughput=self.throughput,
            attainment=counts.attainment,
            ttft_p95=_finite(self.p95.get("ttft")),
            itl_p95=_finite(self.p95.get("itl")),
            e2e_p95=_finite(self.p95.get("e2e")),
            requests=counts.requests,
            good=counts.good,
            seconds=counts.seconds,
            output_tokens=counts.output_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpan:
    """A window that has ended. Unix times: begin, end of the arrivals, end of the drain."""

    revision: str
    generation: int
    start: float
    end: float
    drained: float

    @property
    def labels(self) -> dict[str, str]:
        """The labels that select its series."""
        return {"revision": self.revision, "config_generation": str(self.generation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSide:
    """What the client recorded of a window. `early`: warm-up requests that may have reached the engine after its begin.

    `lag_limit`: how late, in seconds, 99 % of the requests may be sent.
    """

    records: Sequence[RequestRecord]
    early: int = 0
    lag_limit: float = math.inf


async def read_trial(prometheus: Prometheus, span: WindowSpan, client: ClientSide) -> TrialReading:
    """The window's reading. Raises `TrialVoid` with the reason if the live metrics do not support one."""
    check_client(client)
    try:
        pod = await _pod(prometheus, span)
        stats = await read_window(
            prometheus,
            pods=pod,
            where=span.labels,
            start=span.start,
            end=span.drained,
            timeout=SCRAPE_TIMEOUT,
        )
        rejected = await _total(prometheus, metrics.REJECTED.series, span)
        check_counts(client, finished=stats.counts.requests, rejected=rejected)
        planned = max(float(len(client.records)), stats.counts.requests + rejected)
        middle = await _half(prometheus, span, at=(span.start + span.end) / 2)
        tokens, seconds = await _tokens(prometheus, span)
        e2e = await _e2e_p95(prometheus, span)
    except WindowVoidError as error:
        raise TrialVoid(error.kind, error.reason) from error
    except PrometheusError as error:
        raise TrialVoid(VoidKind.UNSCRAPED, str(error)) from error
    # Until the end of the drain the engine counts requests that arrived in these seconds, but not unfinished ones.
    counts = replace(stats.counts, requests=planned, seconds=span.end - span.start)
    return TrialReading(
        counts=counts,
        throughput=tokens / seconds,
        p95={"ttft": stats.ttft_p95, "itl": stats.itl_p95, "e2e": e2e},
        halves=halves(middle, counts),
    )


async def wait_until_scraped(prometheus: Prometheus, revision: str) -> None:
    """Wait until Prometheus has scraped the engine under that revision: a window needs a scrape before it.

    Raises `TrialVoid`.
    """
    info = selector(metrics.CONFIG_INFO.series, {"revision": revision})
    try:
        await prometheus.wait_for_scrape(info, 0.0, SCRAPE_TIMEOUT)
    except PrometheusError as error:
        raise TrialVoid(VoidKind.UNSCRAPED, f"Prometheus does not scrape this engine: {error}") from error


def halves(first: Counts, whole: Counts) -> tuple[Counts, Counts]:
    """Both halves of a window, by the time of finishing. Unfinished requests count in the second."""
    return first, Counts(
        good=whole.good - first.good,
        requests=whole.requests - first.requests,
        seconds=whole.seconds - first.seconds,
        output_tokens=whole.output_tokens - first.output_tokens,
    )


def check_client(client: ClientSide) -> None:
    """Void a window in which the client, not the engine, set the numbers. Raises `TrialVoid`."""
    lost = [record for record in client.records if record.error in LOST]
    if lost:
        first = f"{lost[0].error}: {lost[0].detail}"
        gone = any(record.error in (ErrorKind.CONNECT, ErrorKind.RESET) for record in lost)
        raise TrialVoid(
            VoidKind.RESTARTED if gone else VoidKind.BROKEN_ANSWERS,
            f"{len(lost)} of {len(client.records)} requests broke off, the first with {first}",
        )
    full = sum(record.error == ErrorKind.CLIENT_FULL for record in client.records)
    if full:
        raise TrialVoid(VoidKind.CLIENT_LIMIT, f"the client was at its limit: {full} requests could not be sent")
    lag = distribution(record.lag for record in client.records)
    if lag is not None and lag.p99 > client.lag_limit:
        raise TrialVoid(
            VoidKind.CLIENT_LIMIT,
            f"the client could not keep its schedule: 99 % of requests were sent within {lag.p99:.3f} s of their time, "
            f"{client.lag_limit:.3f} s is allowed; give the tuner more CPU",
        )


def check_counts(client: ClientSide, *, finished: float, rejected: float) -> None:
    """The engine's counts and the client's must agree, except for requests whose end is unknown. Raises `TrialVoid`."""
    certain = sum(record.error is None or record.error == "http_429" for record in client.records)
    most, counted = len(client.records) + client.early, finished + rejected
    if not certain <= counted <= most:
        raise TrialVoid(
            VoidKind.DISTURBED,
            f"the engine counted {finished:g} finished and {rejected:g} refused requests, the client {certain} with "
            f"an answer of {len(client.records)} sent; is anything else sending requests to this engine?",
        )


async def _pod(prometheus: Prometheus, span: WindowSpan) -> dict[str, str]:
    """Labels that identify the engine among all targets of Prometheus; waits for a scrape after the window."""
    info = selector(metrics.CONFIG_INFO.series, span.labels)
    await prometheus.wait_for_scrape(info, span.drained, SCRAPE_TIMEOUT)
    found = {
        tuple((name, sample.labels[name]) for name in IDENTITY if name in sample.labels)
        for sample in await prometheus.query(info)
    }
    if len(found) != 1:
        raise TrialVoid(
            VoidKind.DISTURBED, f"{len(found)} engines have the revision {span.revision}; exactly one should"
        )
    return dict(found.pop())


async def _total(prometheus: Prometheus, name: str, span: WindowSpan, at: float | None = None) -> float:
    # The generation began in this window, so its counters started at 0.
    return math.fsum(sample.value for sample in await prometheus.query(selector(name, span.labels), at))


async def _half(prometheus: Prometheus, span: WindowSpan, *, at: float) -> Counts:
    names = (metrics.SLO_GOOD, metrics.SLO_TOTAL, metrics.REJECTED, metrics.OUTPUT_TOKENS)
    good, judged, rejected, tokens = await asyncio.gather(
        *(_total(prometheus, metric.series, span, at) for metric in names)
    )
    return Counts(good=good, requests=judged + rejected, seconds=at - span.start, output_tokens=tokens)


async def _tokens(prometheus: Prometheus, span: WindowSpan) -> tuple[float, float]:
    """Output tokens at the last scrape while the load was on, and how long after the begin that was, seconds."""
    samples = await prometheus.raw(selector(metrics.OUTPUT_TOKENS.series, span.labels), span.start, span.end)
    if not samples:
        raise TrialVoid(
            VoidKind.UNSCRAPED, "no scrape inside the window: make workload.duration at least twice the scrape interval"
        )
    last = max(samples, key=lambda sample: sample.timestamp)
    return last.value, last.timestamp - span.start


async def _e2e_p95(prometheus: Prometheus, span: WindowSpan) -> float:
    samples = await prometheus.query(selector(f"{metrics.E2E.name}_bucket", span.labels))
    return histogram_quantile(0.95, _buckets(samples))


def _buckets(samples: Sequence[PromSample]) -> Mapping[float, float]:
    buckets: defaultdict[float, float] = defaultdict(float)
    for sample in samples:
        buckets[float(sample.labels["le"])] += sample.value
    return buckets


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
