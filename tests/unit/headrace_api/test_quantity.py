"""Durations and quantities."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_api.quantity import format_quantity, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("800ms", 0.8),
        ("20s", 20),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("0s", 0),
        ("1h1m1s1ms", 3661.001),
        ("2m5ms", 120.005),
    ],
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1d", "1s1", "one", "1s\n"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: write e\.g\. 800ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        (4, "4"),
        ("2Gi", "2147483648"),
        ("1e3", "1000"),
        ("1E", "1e18"),
        (".5", "0.5"),
        ("-1Ki", "-1024"),
    ],
)
def test_parse_quantity(text: str | int, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1gb", "--1", "Gi", "1GiB"])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**60), st.booleans())
def test_a_quantity_survives_the_round_trip(value: int, binary: bool) -> None:
    assert parse_quantity(format_quantity(Decimal(value), binary=binary)) == value


def test_format_quantity() -> None:
    assert format_quantity(Decimal("0.5")) == "500m"
    assert format_quantity(Decimal(1000)) == "1k"
    assert format_quantity(Decimal(2**31), binary=True) == "2Gi"
    with pytest.raises(ValueError, match="no exact quantity"):
        format_quantity(Decimal("1e-12"))
