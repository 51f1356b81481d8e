"""The generated pages have every knob and every metric, and their queries use only names that exist."""

import re

import pytest

from headrace_api.knobs_page import RULES, knobs_page
from headrace_api.metrics_page import QUERIES, Query, metrics_page
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import KNOBS
from headrace_core.metric_names import ALL_METRICS, MetricKind

SERIES = {
    name: metric
    for metric in ALL_METRICS
    for name in (
        [f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
        if metric.kind is MetricKind.HISTOGRAM
        else [metric.series]
    )
}


def rows(page: str) -> dict[str, list[str]]:
    """Table rows, by the name quoted in their first cell."""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name = re.match(r"`([^`]+)`", cells[0]) if len(cells) > 3 else None
        if name:
            found[name[1]] = cells
    return found


def test_every_knob_is_there_with_its_three_names() -> None:
    table = rows(knobs_page())
    assert set(table) == {knob.name for knob in KNOBS}
    for knob in KNOBS:
        cells = table[knob.name]
        assert len(cells) == 7
        assert cells[1] == f"`{knob.klass}`"
        assert cells[5:] == [f"`{knob.flag}`", f"`{knob.camel}`"]
        assert all(f"`{choice}`" in cells[3] for choice in knob.choices)
        assert knob.unit in cells[3]
        assert knob.doc in cells[4]
    assert table["decode_ratio"][3] == "from 0 to below 1"
    assert table["max_num_batched_tokens"][3] == "from 1 to 1048576 tokens"
    assert "⌈ ⌉" in table["max_num_seqs"][0]
    assert "⌈ ⌉" not in table["decode_ratio"][0]


def test_flags_beside_the_table_are_named() -> None:
    from headrace_engine.cli import ALIASES

    for flag in ("--scheduler-max-num-seqs", *(name for names in ALIASES.values() for name in names)):
        assert f"`{flag}" in knobs_page()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text[:40])
def test_breaking_each_rule_raises_an_error_that_says_why(rule) -> None:
    with pytest.raises(ConfigError) as refused:
        rule.broken()
    for problem in refused.value.problems:
        assert f"- `{problem}`" in knobs_page()


def test_every_metric_is_there() -> None:
    table = rows(metrics_page())
    assert set(table) == {metric.series for metric in ALL_METRICS}
    for metric in ALL_METRICS:
        cells = table[metric.series]
        assert len(cells) == 5
        assert ("★" in cells[0]) == metric.decision
        assert cells[1] == metric.kind
        assert metric.doc in cells[3]
        assert metric.differs in cells[3]
        assert bool(cells[4]) == bool(metric.buckets)
        assert all(f"`{value}`" in cells[2] for value in metric.values)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.question)
def test_queries_name_series_and_labels_that_exist(query: Query) -> None:
    used = re.findall(r"((?:headrace|vllm):\w+)(?:\{(\w+))?", query.expr)
    assert used
    for name, label in used:
        assert name in SERIES, "a counter is queried with _total, a histogram by one of its three series"
        assert not label or label in SERIES[name].labels
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query.expr) for label in group.split(",")}
    known = {label for name, _ in used for label in SERIES[name].labels}
    assert grouped <= known | {"le", "instance"}
    assert f"{query.question}:\n\n```promql\n{query.expr}\n```" in metrics_page()


def test_a_ratio_of_rates_is_over_counters() -> None:
    for query in QUERIES:
        for name in re.findall(r"(?:rate|increase)\(((?:headrace|vllm):\w+)", query.expr):
            assert SERIES[name].kind is not MetricKind.GAUGE
