"""Counters, gauges and histograms of a metric table, cheap to update and to render.

prometheus_client fixes one set of bounds per histogram metric, takes microseconds per sample, which delays the step
thread, and about ten per rendered line, which delays all threads through the GIL. Here a sample is an addition, the
text of a line up to its value is made once, and each series has its own bounds.

To make several changes visible at once, hold `lock` while making them.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headrace_core.metric_names import Metric as Row
from headrace_core.metric_names import MetricKind

Labels = tuple[str, ...]


class Value:
    """The series of a counter or a gauge."""

    __slots__ = ("_head", "value")

    def __init__(self, row: Row, labels: Labels) -> None:
        self._head = f"{row.series}{_braces(row, labels)} "
        self.value: float = 0

    def snapshot(self) -> float:
        """The current value, for `lines`."""
        return self.value

    def lines(self, value: float) -> Iterable[str]:
        """The exposition line of a snapshot."""
        return (self._head + repr(value),)


class Histogram:
    """Counts per bucket, not cumulative; `bounds` are the upper bounds without infinity."""

    __slots__ = ("_heads", "bounds", "counts", "sum")

    def __init__(self, row: Row, labels: Labels, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0
        braces = _braces(row, labels)
        self._heads = [
            *(f'{row.name}_bucket{braces[:-1]},le="{tail}"}} ' for tail in _tails(self.bounds)),
            f"{row.name}_count{braces} ",
            f"{row.name}_sum{braces} ",
        ]

    def observe(self, value: float) -> None:
        """Add one sample. A value equal to a bound goes into the bucket that ends there."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Add several samples."""
        counts, bounds = self.counts, self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += math.fsum(values)

    def snapshot(self) -> tuple[list[int], float]:
        """The current counts and sum, for `lines`."""
        return list(self.counts), self.sum

    def lines(self, snapshot: tuple[list[int], float]) -> Iterable[str]:
        """The exposition lines of a snapshot; `_count` equals the last bucket, as Prometheus requires."""
        counts, total = snapshot
        texts = [str(count) for count in accumulate(counts)]
        return map(str.__add__, self._heads, (*texts, texts[-1], repr(total)))


class SeriesTable(Collector):
    """All series of some metrics. `before_scrape` is called under the lock before series are read."""

    def __init__(self, rows: Iterable[Row], *, before_scrape: Callable[[], None] = lambda: None) -> None:
        self.lock = threading.RLock()
        self._rows = tuple(rows)
        self._values: dict[str, dict[Labels, Value]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        for row in self._rows:
            if row.kind is MetricKind.HISTOGRAM:
                self._histograms[row.name] = {}
            else:
                self._values[row.name] = {}
        self._before_scrape = before_scrape

    def value(self, row: Row, *labels: str) -> Value:
        """The counter or gauge with these label values; a new one starts at 0."""
        family = self._values[row.name]
        found = family.get(labels)
        if found is None:
            found = family[labels] = Value(row, labels)
        return found

    def histogram(self, row: Row, *labels: str, bounds: Sequence[float]) -> Histogram:
        """The histogram with these label values; a new one starts empty, an existing one keeps its bounds."""
        family = self._histograms[row.name]
        found = family.get(labels)
        if found is None:
            found = family[labels] = Histogram(row, labels, bounds)
        return found

    def drop(self, row: Row, unwanted: Callable[[Labels], bool]) -> None:
        """Remove the series whose label values are `unwanted`."""
        family: dict[Labels, Any] = self._histograms.get(row.name) or self._values.get(row.name) or {}
        with self.lock:
            for labels in [labels for labels in family if unwanted(labels)]:
                del family[labels]

    def text(self) -> str:
        """All series in Prometheus's text format, as of one moment."""
        with self.lock:  # only while copying: rendering would hold up the step thread for too long
            self._before_scrape()
            copies = [(row, [(one, one.snapshot()) for one in self._all(row)]) for row in self._rows]
        lines: list[str] = []
        for row, family in copies:
            lines.append(_head(row))
            for one, snapshot in family:
                lines.extend(one.lines(snapshot))
        lines.append("")
        return "\n".join(lines)

    def collect(self) -> Iterator[Metric]:
        """The same as prometheus_client's objects, for readers of the registry."""
        with self.lock:
            self._before_scrape()
            families = [self._family(row) for row in self._rows]
        yield from families

    def _all(self, row: Row) -> Iterable[Any]:
        return (self._histograms.get(row.name) or self._values.get(row.name) or {}).values()

    def _family(self, row: Row) -> Metric:
        if row.kind is MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(row.name, row.doc, labels=row.labels)
            for labels, one in self._histograms[row.name].items():
                buckets = zip(_tails(one.bounds), accumulate(one.counts), strict=True)
                histogram.add_metric(labels, list(buckets), one.sum)
            return histogram
        make = CounterMetricFamily if row.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(row.name, row.doc, labels=row.labels)
        for labels, value in self._values[row.name].items():
            family.add_metric(labels, value.value)
        return family


def _tails(bounds: Sequence[float]) -> list[str]:
    return [*map(floatToGoString, bounds), "+Inf"]


def _head(row: Row) -> str:
    text = row.doc.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {row.series} {text}\n# TYPE {row.series} {row.kind}"


def _braces(row: Row, labels: Labels) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(row.labels, labels, strict=True))
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
