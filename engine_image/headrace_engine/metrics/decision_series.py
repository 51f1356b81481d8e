"""The series labelled with a config generation, all made when a config comes into force, so that they start at 0."""

from __future__ import annotations

from collections.abc import Hashable

from headrace_core import metric_names as names
from headrace_core.evidence.slo import TARGETS, SloSet
from headrace_core.metric_names import Metric, MetricKind
from headrace_engine.metrics.series import Histogram, SeriesTable, Value

# Only the config in force has this one: `EngineMetrics.set_config` writes it.
_APART = frozenset({names.CONFIG_INFO.name})
METRICS = tuple(
    metric
    for metric in names.ALL_METRICS
    if metric.labels[: len(names.DECISION_LABELS)] == names.DECISION_LABELS and metric.name not in _APART
)


def bounds(metric: Metric, slo: SloSet | None) -> tuple[float, ...]:
    """The bounds of a histogram under an SLO set: those of the metric table, and the SLO threshold itself."""
    threshold = slo.threshold(metric.slo) if slo and metric.slo else None
    return names.buckets_with(metric.buckets, threshold)


class DecisionSeries:
    """The series of one generation and revision. `add` and `observe` expect the table's lock to be held."""

    def __init__(self, table: SeriesTable, labels: tuple[str, str, str], slo: SloSet | None) -> None:
        self._table = table
        self._labels = labels
        self._slo = slo
        self._values: dict[Hashable, Value] = {}
        self._histograms: dict[Hashable, Histogram] = {}
        for metric in METRICS:
            for more in _known_labels(metric, slo):
                self._make(metric, more)

    def add(self, metric: Metric, amount: float = 1, *more: str) -> None:
        """Increase a counter; `more` are the values of its labels beyond the decision labels."""
        key = (metric.name, *more) if more else metric.name
        if key not in self._values:
            self._make(metric, more)
        self._values[key].value += amount

    def value(self, metric: Metric) -> Value:
        """A counter that has no labels beyond the decision labels."""
        return self._values[metric.name]

    def observe(self, metric: Metric, value: float, *more: str) -> None:
        """Add a sample to a histogram; `more` as for `add`."""
        self._histograms[(metric.name, *more) if more else metric.name].observe(value)

    def observe_all(self, metric: Metric, values: list[float]) -> None:
        """Add samples to a histogram that has no labels beyond the decision labels."""
        self._histograms[metric.name].observe_all(values)

    def _make(self, metric: Metric, more: tuple[str, ...]) -> None:
        key: Hashable = (metric.name, *more) if more else metric.name
        labels = (*self._labels, *more)
        if metric.kind is MetricKind.HISTOGRAM:
            self._histograms[key] = self._table.histogram(metric, *labels, bounds=bounds(metric, self._slo))
        else:
            self._values[key] = self._table.value(metric, *labels)


def _known_labels(metric: Metric, slo: SloSet | None) -> list[tuple[str, ...]]:
    """The values, known in advance, of the labels beyond the decision labels: one tuple per series."""
    extra = metric.labels[len(names.DECISION_LABELS) :]
    if metric is names.SLO_MISSES:
        return [(names.slo_id(slo), target) for target in TARGETS if slo and slo.threshold(target) is not None]
    if extra == ("slo",):
        return [(names.slo_id(slo),)]
    return [(value,) for value in metric.values] if extra else [()]
