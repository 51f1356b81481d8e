"""Counters, gauges and histograms of a metric table, cheap to update and to render.

prometheus_client fixes a histogram's bounds when it is made, takes microseconds for a sample, and renders one line in
ten; the step thread pays for the first, and everybody who waits for the interpreter for the second. Here a sample is
an addition, the text of a line up to its value is made once, and the bounds belong to the series.

`lock` makes several samples appear at once: hold it while changing what belongs together.
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
    """A counter or a gauge."""

    __slots__ = ("_head", "value")

    def __init__(self, row: Row, labels: Labels) -> None:
        self._head = f"{row.series}{_braces(row, labels)} "
        self.value: float = 0

    def snapshot(self) -> float:
        """What `lines` needs."""
        return self.value

    def lines(self, value: float) -> Iterable[str]:
        """The text of a snapshot."""
        return (self._head + repr(value),)


class Histogram:
    """Counts by bucket, not cumulated; `bounds` are the upper ones, the infinite one left out."""

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
        """One sample. A bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Several samples."""
        counts, bounds = self.counts, self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += math.fsum(values)

    def snapshot(self) -> tuple[list[int], float]:
        """What `lines` needs: counts and sum."""
        return list(self.counts), self.sum

    def lines(self, snapshot: tuple[list[int], float]) -> Iterable[str]:
        """The text of a snapshot; `_count` is the last bucket, so that the two always agree."""
        counts, total = snapshot
        texts = [str(count) for count in accumulate(counts)]
        return map(str.__add__, self._heads, (*texts, texts[-1], repr(total)))


class SeriesTable(Collector):
    """Every series of some metrics. `before_scrape` is called, under the lock, before anything is read."""

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
        """The counter or gauge with these label values, born at 0."""
        family = self._values[row.name]
        found = family.get(labels)
        if found is None:
            found = family[labels] = Value(row, labels)
        return found

    def histogram(self, row: Row, *labels: str, bounds: Sequence[float]) -> Histogram:
        """The histogram with these label values, born empty; one that exists keeps the bounds that it has."""
        family = self._histograms[row.name]
        found = family.get(labels)
        if found is None:
            found = family[labels] = Histogram(row, labels, bounds)
        return found

    def drop(self, row: Row, unwanted: Callable[[Labels], bool]) -> None:
        """Forget the series whose label values are `unwanted`."""
        family: dict[Labels, Any] = self._histograms.get(row.name) or self._values.get(row.name) or {}
        with self.lock:
            for labels in [labels for labels in family if unwanted(labels)]:
                del family[labels]

    def text(self) -> str:
        """The exposition text, as of one moment."""
        with self.lock:  # only for the copies: making the text takes longer than anybody should wait
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
        """The same as objects, for whoever asks the registry."""
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
