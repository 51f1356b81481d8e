"""The operator's Prometheus metrics, on their own registry."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Body = Mapping[str, Any]
DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counts reconciles as they happen; reads the queue and the objects when scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "headrace_operator_reconciles", "Reconcile passes by result.", ["kind", "result"], registry=self.registry
        )
        self.seconds = Histogram(
            "headrace_operator_reconcile_seconds",
            "Duration of one reconcile pass.",
            ["kind"],
            buckets=DURATIONS,
            registry=self.registry,
        )
        self.last_event = Gauge(
            "headrace_operator_last_event_time_seconds", "Unix time of the last watch event.", registry=self.registry
        )

    def watch_queue(self, depth: Callable[[], float], oldest: Callable[[], float]) -> None:
        """Report a queue: its depth, and the age of its oldest key in seconds."""
        gauge = Gauge("headrace_operator_queue_depth", "Keys waiting.", registry=self.registry)
        gauge.set_function(depth)
        age = Gauge("headrace_operator_queue_oldest_seconds", "Age of the oldest key.", registry=self.registry)
        age.set_function(oldest)

    def watch_objects(self, services: Callable[[], Iterable[Body]], runs: Callable[[], Iterable[Body]]) -> None:
        """Report how many objects there are, by state."""
        self.registry.register(_Objects(services, runs))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Objects(Collector):
    def __init__(self, services: Callable[[], Iterable[Body]], runs: Callable[[], Iterable[Body]]) -> None:
        self._services = services
        self._runs = runs

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield _family("headrace_operator_services", "InferenceServices by Ready.", ("ready", self._services, _ready))
        yield _family("headrace_operator_tuning_runs", "TuningRuns by phase.", ("phase", self._runs, _phase))


def _family(
    name: str,
    doc: str,
    source: tuple[str, Callable[[], Iterable[Body]], Callable[[Body], str]],
) -> GaugeMetricFamily:
    label, objects, state_of = source
    family = GaugeMetricFamily(name, doc, labels=[label])
    for state, count in sorted(Tally(state_of(body) for body in objects()).items()):
        family.add_metric([state], count)
    return family


def _ready(body: Body) -> str:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((str(item["status"]) for item in conditions if item["type"] == "Ready"), "Unknown")


def _phase(body: Body) -> str:
    return (body.get("status") or {}).get("phase") or "Pending"
