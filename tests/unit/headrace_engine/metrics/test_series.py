"""The exposition text matches the objects, bounds are inclusive, and one scrape shows one moment."""

import sys
import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headrace_core.metric_names import Metric, MetricKind
from headrace_engine.metrics.series import SeriesTable

COUNTER = Metric(name="h:c", kind=MetricKind.COUNTER, doc="A counter.", labels=("a", "b"))
GAUGE = Metric(name="h:g", kind=MetricKind.GAUGE, doc="A \\ gauge\nin two lines.", labels=("a",))
HISTOGRAM = Metric(name="h:x_total", kind=MetricKind.HISTOGRAM, doc="A histogram.", labels=("a",), buckets=(0.1, 1.0))


@pytest.fixture
def table() -> SeriesTable:
    return SeriesTable((COUNTER, GAUGE, HISTOGRAM))


def samples(families: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
    }


def test_the_text_is_what_the_registry_says(table: SeriesTable) -> None:
    table.value(COUNTER, "x", 'quo"te\\back\nline').value += 3
    table.value(COUNTER, "y", "").value += 0.1 + 0.2
    table.value(GAUGE, "x").value = -1e-07
    histogram = table.histogram(HISTOGRAM, "x", bounds=(0.0371, 0.1, 1.0, 1e6))
    histogram.observe(0.0371)
    histogram.observe_all([0.05, 0.1, 7.0, 1e9])
    registry = CollectorRegistry()
    registry.register(table)
    parsed = list(text_string_to_metric_families(table.text()))
    assert samples(parsed) == samples(registry.collect())
    assert {family.name: family.type for family in parsed} == {
        "h:c": "counter",
        "h:g": "gauge",
        "h:x_total": "histogram",
    }
    assert {family.name: family.documentation for family in parsed}["h:g"] == GAUGE.doc
    found = samples(parsed)
    assert found["h:c_total", (("a", "x"), ("b", 'quo"te\\back\nline'))] == 3
    at_most = {bound: found["h:x_total_bucket", (("a", "x"), ("le", bound))] for bound in ("0.0371", "0.1", "+Inf")}
    assert at_most == {"0.0371": 1, "0.1": 3, "+Inf": 5}, "a bound belongs to the bucket below it"
    assert found["h:x_total_count", (("a", "x"),)] == 5


def test_series_are_born_at_zero_and_keep_their_bounds(table: SeriesTable) -> None:
    table.value(COUNTER, "x", "y")
    table.histogram(HISTOGRAM, "x", bounds=(0.5,))
    assert table.histogram(HISTOGRAM, "x", bounds=(0.7,)).bounds == (0.5,)
    assert set(samples(table.collect()).values()) == {0}


def test_dropped_series_are_gone_and_a_new_one_starts_at_zero(table: SeriesTable) -> None:
    for name in "xyz":
        table.value(GAUGE, name).value = 1
    table.drop(GAUGE, lambda labels: labels[0] in "xy")
    assert [key for key, _ in samples(table.collect()).items()] == [("h:g", (("a", "z"),))]
    assert table.value(GAUGE, "x").value == 0


def test_a_wrong_number_of_label_values_is_refused(table: SeriesTable) -> None:
    with pytest.raises(ValueError, match="shorter"):
        table.value(COUNTER, "x")


def test_before_a_scrape_gauges_can_be_brought_up_to_date() -> None:
    table = SeriesTable((GAUGE,), before_scrape=lambda: setattr(table.value(GAUGE, "x"), "value", 7))
    assert 'h:g{a="x"} 7\n' in table.text()
    assert samples(table.collect())["h:g", (("a", "x"),)] == 7


def test_values_changed_together_are_seen_together(table: SeriesTable) -> None:
    """A reader that saw more good requests than requests would reject its window."""
    total, good = table.value(COUNTER, "x", "total"), table.histogram(HISTOGRAM, "good", bounds=(1.0,))
    for at in range(2000):  # between the two, so that reading takes longer than writing
        table.value(GAUGE, f"{at}")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with table.lock:
                total.value += 1
                good.observe(0.5)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            lines = table.text().splitlines()
            seen = [line.split()[-1] for line in lines if line.startswith(("h:c_total{", "h:x_total_count{"))]
            assert seen[0] == seen[1]
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert total.value > 0
