"""Two results of `bench serve` side by side: ratios with intervals. Pure, but for reading the files.

Requests of one run depend on each other: one long prefill spoils all beside it. So the bootstrap resamples not requests
but stretches of neighbours (circular block bootstrap, blocks of about the square root of the count); if both runs
had the same plan, it takes the same stretches of both. An interval of p99 from fewer than about 300 requests is too
narrow: a small sample misses rarer values. And one run a side cannot show how much runs differ from each other: for
that, compare several.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from headrace_bench.errors import BenchError
from headrace_bench.serve.result import SCHEMA
from headrace_core.evidence.percentiles import PERCENTILES, duration, nearest_rank

ROUNDS, CONFIDENCE = 1000, 0.95
FEWEST = 20  # complete requests a side; below, an interval would be fiction
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "worst_gap": "worst gap", "e2e": "E2E"}
SAME = ("url", "model", "mode", "seed")
Sample = Mapping[str, Any]
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """After over before, with its 95 % interval if there are enough requests."""

    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """`paired`: both runs had the same plan. `differences`: what else differs between them, as text."""

    paired: bool
    requests: tuple[int, int]
    ratios: dict[str, Ratio]
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"schema": "headrace.bench.compare/1", **asdict(self)}


def read_result(path: Path) -> dict[str, Any]:
    """A result file. Raises `BenchError`."""
    try:
        result = json.loads(path.read_text())
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise BenchError(f"{path}: is not a result of `headrace bench serve --json` of this version ({SCHEMA})")
    return result


def compare(before: Mapping[str, Any], after: Mapping[str, Any], *, seed: int = 0) -> RunComparison:
    """Ratios of latencies and of token throughput of two result files."""
    sides = (_samples(before), _samples(after))
    paired = _plan(sides[0]) == _plan(sides[1]) and _load(before) == _load(after)
    ratios = {}
    for name in METRICS:
        for percent in PERCENTILES:
            before_values, after_values = ([item[name] for item in side] for side in sides)
            found = bootstrap_ratio(before_values, after_values, percent, paired=paired, seed=seed)
            if found is not None:
                ratios[f"{name}_p{percent}"] = found
    tokens = [float(result["output_tokens_per_second"]) for result in (before, after)]
    if min(tokens) > 0:
        ratios["tokens_per_second"] = Ratio(
            before=tokens[0], after=tokens[1], ratio=tokens[1] / tokens[0], low=None, high=None
        )
    return RunComparison(
        paired=paired,
        requests=(len(sides[0]), len(sides[1])),
        ratios=ratios,
        differences=_differences(before, after),
    )


def bootstrap_ratio(
    before: Values, after: Values, percent: int, *, paired: bool, seed: int = 0, rounds: int = ROUNDS
) -> Ratio | None:
    """The ratio of a percentile of both sides; None if a side has none. None among the values counts as absent.

    `paired`: the sides correspond one by one.
    """
    first, second = _percentile(before, percent), _percentile(after, percent)
    if first is None or second is None or first <= 0 or second <= 0:
        return None
    low = high = None
    if min(len(before), len(after)) >= FEWEST:
        rng, ratios = random.Random(seed), list[float]()  # noqa: S311  (repeatable, not secret)
        for _ in range(rounds):
            chosen = _blocks(len(before), rng)
            others = chosen if paired else _blocks(len(after), rng)
            old, new = (
                _percentile([before[at] for at in chosen], percent),
                _percentile([after[at] for at in others], percent),
            )
            if old and new:
                ratios.append(new / old)
        if ratios:
            tail = 100 * (1 - CONFIDENCE) / 2
            low, high = nearest_rank(ratios, tail), nearest_rank(ratios, 100 - tail)
    return Ratio(before=first, after=second, ratio=second / first, low=low, high=high)


def _percentile(values: Values, percent: int) -> float | None:
    # Not core's nearest_rank, which looks for NaN first: this runs some ten thousand times.
    known = sorted(value for value in values if value is not None)
    return known[max(1, math.ceil(percent * len(known) / 100)) - 1] if known else None


def _blocks(count: int, rng: random.Random) -> list[int]:
    """`count` places, in stretches of neighbours that wrap around the end."""
    length = max(1, round(math.sqrt(count)))
    starts = [int(rng.random() * count) for _ in range(math.ceil(count / length))]
    return [(start + step) % count for start in starts for step in range(length)][:count]


def comparison_table(compared: RunComparison, *, names: tuple[str, str]) -> RenderableType:
    """The comparison for people."""
    table = Table(title=f"{names[1]} relative to {names[0]}", title_justify="left", title_style="bold")
    for name in ("", names[0], names[1], "ratio", "95 %"):
        table.add_column(name, justify="left" if not name else "right", overflow="fold")
    for name, ratio in compared.ratios.items():
        metric, _, percent = name.rpartition("_")
        label = f"{METRICS[metric]} {percent}" if metric in METRICS else "tokens/s"
        show = duration if metric in METRICS else "{:.1f}".format
        table.add_row(label, show(ratio.before), show(ratio.after), f"{ratio.ratio:.3f}", _interval(ratio))
    how = "the same plan, so requests are compared in pairs" if compared.paired else "different plans"
    lines = [f"{compared.requests[0]} and {compared.requests[1]} requests; {how}", *compared.differences]
    return Group(table, *(escape(line) for line in lines))


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "-"
    colour = "dim" if ratio.low <= 1 <= ratio.high else "bold"
    return f"[{colour}]{ratio.low:.3f} to {ratio.high:.3f}[/]"


def _samples(result: Mapping[str, Any]) -> list[Sample]:
    return sorted(result["samples"], key=lambda sample: sample["number"])


def _plan(samples: Sequence[Sample]) -> list[int]:
    return [sample["number"] for sample in samples]


def _load(result: Mapping[str, Any]) -> dict[str, Any]:
    """The options that determine the plan of a load."""
    unplanned = {"json", "records", "strict", "model", "api_key_file", "salt", "keep_alive"}
    return {name: value for name, value in result["load"].items() if name not in unplanned}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    found = [f"{key}: {before[key]} against {after[key]}" for key in SAME if before[key] != after[key]]
    old, new = _load(before), _load(after)
    found += [f"{key}: {old.get(key)} against {new.get(key)}" for key in old if old.get(key) != new.get(key)]
    for side, result in (("before", before), ("after", after)):
        if result["client"]["limited"]:
            found.append(f"{side}: the client was the limit; that side says less about the server")
        if result["errors"]:
            found.append(f"{side}: {sum(result['errors'].values())} of {result['requests']} requests failed")
    for key in ("cpu", "cores"):
        if before["environment"].get(key) != after["environment"].get(key):
            found.append(f"{key}: {before['environment'].get(key)} against {after['environment'].get(key)}")
    return tuple(dict.fromkeys(found))
