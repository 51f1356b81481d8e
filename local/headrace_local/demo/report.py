"""The demo's closing tables: before and after side by side, and the time per step. Pure but for printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from headrace_local.progress import elapsed_text

# Field of the status's measures, its label, unit, whether more is better.
_ROWS = (
    ("attainment", "SLO attainment", "%", True),
    ("goodput", "goodput (requests/s within the SLO)", "/s", True),
    ("ttftP95", "TTFT p95", "ms", False),
    ("itlP95", "inter-token latency p95", "ms", False),
    ("itlP99", "inter-token latency p99", "ms", False),
    ("throughput", "output tokens", "/s", True),
    ("requests", "requests measured", "", None),
)


def before_after(rollout: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """The running service under the old and the new knobs, same load, read from Prometheus."""
    table = Table(title="The running pod, before and after (same load, same process)", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right", style="bold")
    table.add_column("after / before", justify="right")
    before, after = rollout.get("before") or {}, rollout.get("after") or {}
    for field, title, unit, _ in _ROWS:
        table.add_row(title, show(before.get(field), unit), show(after.get(field), unit), ratio(before, after, field))
    table.add_section()
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            table.add_row(name, str(old.get(name, "default")), str(new.get(name, "default")), "")
    return table


def ratio(before: Mapping[str, Any], after: Mapping[str, Any], field: str) -> str:
    """`1.8x`, or a dash if either is missing."""
    if field == "requests" or not before.get(field) or after.get(field) is None:
        return "-"
    return f"{after[field] / before[field]:.2f}x"


def show(value: float | None, unit: str) -> str:
    """A figure for display: seconds as ms, shares as percent."""
    if value is None:
        return "-"
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "ms":
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} {unit}".strip() if unit else f"{value:.0f}"


def times(stages: Sequence[tuple[str, float]]) -> Table:
    """A table of each step's duration, and the total."""
    table = Table(title="Time", title_justify="left", show_header=False)
    for title, seconds in stages:
        table.add_row(title, elapsed_text(seconds))
    table.add_section()
    table.add_row("whole demo", elapsed_text(sum(seconds for _, seconds in stages)))
    return table
