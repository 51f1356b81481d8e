"""Prometheus' text format, as far as sums of counters and gauges need it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class ExpositionSample:
    """One line of an exposition."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> Iterator[ExpositionSample]:
    """The samples; comments and lines that are none are passed over."""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            yield ExpositionSample(name, dict(_LABEL.findall(labels or "")), float(value))
        except ValueError:
            continue


def total(text: str, name: str) -> float | None:
    """Sum over all labels of a series; None where it is absent, which is not zero."""
    values = [sample.value for sample in parse(text) if sample.name == name]
    return math.fsum(values) if values else None
