"""Reads one measurement window of engine pods from Prometheus: the difference of two raw samples of each counter.

`increase()` extrapolates to the window's borders and is off by whole requests in a window of twenty; here both ends are
samples as scraped, and a restart, a vanished series or a missing scrape voids the window instead of bending it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_client.prom import Prometheus, PromSample
from headrace_core import metric_names as metrics
from headrace_core.evidence.counts import Counts
from headrace_core.evidence.windows import (
    Buckets,
    VoidKind,
    WindowStats,
    WindowVoidError,
    bucket_deltas,
    merge_buckets,
    sum_deltas,
    window_stats,
)

_COUNTERS = (metrics.SLO_TOTAL, metrics.SLO_GOOD, metrics.OUTPUT_TOKENS)
_HISTOGRAMS = (metrics.TTFT, metrics.ITL)
_NAMES = "|".join([*(metric.series for metric in _COUNTERS), *(f"{metric.name}_bucket" for metric in _HISTOGRAMS)])
_IDENTITY = ("namespace", "pod", "instance")

Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of a window: the scrape's time in Unix seconds, each pod's start time, and every sample."""

    at: float
    starts: Mapping[Key, float]
    samples: tuple[PromSample, ...]


async def read_window(
    prometheus: Prometheus,
    *,
    pods: Labels,
    start: float,
    end: float,
    where: Labels | None = None,
    timeout: float = 15.0,  # noqa: ASYNC109 - passed on to the wait for a scrape
) -> WindowStats:
    """What the pods with the labels `pods` did from `start` to `end`, Unix seconds.

    `where` narrows the decision metrics further, for example to one config_generation. Waits up to `timeout` seconds
    for a scrape at or after `end`. Raises `WindowVoidError` or `PrometheusError`.
    """
    started = selector(metrics.START_TIME.series, pods)
    await prometheus.wait_for_scrape(started, end, timeout)
    # Pods are scraped one after the other: at the time of the last one each has a sample after `end`.
    scraped = max(sample.value for sample in await prometheus.query(f"timestamp({started})"))
    before = await _edge(prometheus, pods, where or {}, start)
    after = await _edge(prometheus, pods, where or {}, scraped)
    return between(before, after)


def between(before: Edge, after: Edge) -> WindowStats:
    """The window from one edge to the other. Pure. Raises `WindowVoidError`."""
    for pod, started in before.starts.items():
        if after.starts.get(pod) != started:
            raise WindowVoidError(
                VoidKind.RESTARTED, f"{_text(pod)}: the pod went away or its engine restarted inside the window"
            )
    for pod in after.starts:
        if pod not in before.starts:
            raise WindowVoidError(VoidKind.DISTURBED, f"{_text(pod)}: the pod appeared inside the window")
    requests, good, tokens = (_counter(metric.series, before, after) for metric in _COUNTERS)
    ttft, itl = (_histogram(metric.name, before, after) for metric in _HISTOGRAMS)
    counts = Counts(good=good, requests=requests, seconds=after.at - before.at, output_tokens=tokens)
    return window_stats(counts, ttft=ttft, itl=itl)


def selector(name: str, *labels: Labels, by_name: str = "") -> str:
    """`name{a="b",...}` with the values quoted for PromQL; `by_name` is a regular expression of names."""
    pairs = [f"{key}={json.dumps(value, ensure_ascii=False)}" for group in labels for key, value in group.items()]
    if by_name:
        pairs.insert(0, f'__name__=~"{by_name}"')
    return f"{name}{{{','.join(pairs)}}}"


async def _edge(prometheus: Prometheus, pods: Labels, where: Labels, at: float) -> Edge:
    starts = await prometheus.query(selector(metrics.START_TIME.series, pods), at)
    times = await prometheus.query(f"timestamp({selector(metrics.START_TIME.series, pods)})", at)
    if not times:
        raise WindowVoidError(
            VoidKind.UNSCRAPED, f"no engine with {dict(pods)} was scraped in the five minutes before {at:.3f}"
        )
    samples = await prometheus.query(selector("", pods, where, by_name=_NAMES), at)
    return Edge(
        at=min(sample.value for sample in times),
        starts={_pod(sample.labels): sample.value for sample in starts},
        samples=tuple(samples),
    )


def _counter(name: str, before: Edge, after: Edge) -> float:
    return sum_deltas(_values(name, before), _values(name, after), name=name)


def _values(name: str, edge: Edge) -> dict[Key, float]:
    return {_key(sample.labels): sample.value for sample in edge.samples if sample.labels.get("__name__") == name}


def _histogram(name: str, before: Edge, after: Edge) -> Buckets:
    """Growth by upper bound, over all pods and label sets."""
    first, last = _buckets(name, before), _buckets(name, after)
    series = dict.fromkeys([*first, *last])
    grown = [bucket_deltas(first.get(key), last.get(key), name=name) for key in series]
    # A generation under another SLO set has other bounds; without observations it must not void the window.
    return merge_buckets((buckets for buckets in grown if any(buckets.values())), name=name)


def _buckets(name: str, edge: Edge) -> dict[Key, dict[float, float]]:
    found: dict[Key, dict[float, float]] = {}
    for sample in edge.samples:
        if sample.labels.get("__name__") == f"{name}_bucket":
            found.setdefault(_key(sample.labels, "le"), {})[float(sample.labels["le"])] = sample.value
    return found


def _key(labels: Labels, *without: str) -> Key:
    return tuple(sorted((name, value) for name, value in labels.items() if name not in without))


def _pod(labels: Labels) -> Key:
    return tuple((name, labels[name]) for name in _IDENTITY if name in labels)


def _text(pod: Key) -> str:
    return ", ".join(f"{name} {value}" for name, value in pod)
