"""Prometheus' text format, just enough to sum counters and gauges. Pure; `prometheus_client` reads the lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class ExpositionSample:
    """One line of an exposition."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> Iterator[ExpositionSample]:
    """The samples under the names they are written with; comments and invalid lines are skipped."""
    # Line by line, without the types: the parser gives up at the first bad line, and renames counters that don't end
    # in _total. Not splitlines(): labels may hold Unicode line separators.
    for line in text.split("\n"):
        if not line.strip().startswith("#"):
            yield from _samples_of(line)


def _samples_of(line: str) -> list[ExpositionSample]:
    try:
        return [
            ExpositionSample(sample.name, dict(sample.labels), float(sample.value))
            for family in text_string_to_metric_families(line)
            for sample in family.samples
        ]
    except (ValueError, IndexError):
        return []


def total(text: str, name: str) -> float | None:
    """Sum over all labels of a series; None if there is no such series, which differs from 0."""
    values = [sample.value for sample in parse(text) if sample.name == name]
    return math.fsum(values) if values else None
