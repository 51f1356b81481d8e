"""Durations ("800ms", "1m30s") to seconds; Kubernetes quantities ("500m", "2Gi") to numbers and back."""

from __future__ import annotations

import re
from decimal import Decimal

DURATION_PATTERN = "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"

_DURATION = re.compile(DURATION_PATTERN)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNIT_SECONDS = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}

_QUANTITY = re.compile(r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)$")
_BINARY = {suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `800ms`, `20s`, `1m30s`, `1.5h`. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write e.g. 800ms, 20s or 1m30s (units ms, s, m, h)")
    return float(sum(Decimal(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text)))


def parse_quantity(value: str | float) -> Decimal:
    """Number behind a Kubernetes quantity: `500m` -> 0.5, `2Gi` -> 2147483648, `4` -> 4. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a quantity: write e.g. 500m, 2, 16Gi")
    number, suffix = match.groups()
    if suffix in _BINARY:
        return Decimal(number) * _BINARY[suffix]
    if suffix in _DECIMAL:
        return Decimal(number) * _DECIMAL[suffix]
    return Decimal(number + suffix)


def format_quantity(value: Decimal, *, binary: bool = False) -> str:
    """Canonical quantity: the largest suffix that leaves a whole number; `binary` for bytes (`2Gi`)."""
    table = {"": Decimal(1), **_BINARY} if binary else _DECIMAL
    for suffix, size in sorted(table.items(), key=lambda item: -item[1]):
        if value and value % size == 0:
            return f"{value / size:f}".split(".")[0] + suffix
    if value == 0:
        return "0"
    raise ValueError(f"{value} has no exact quantity")
