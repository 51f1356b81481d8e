"""The result of a comparison: tables for people, a dictionary for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from headrace_bench.quality.comparison import QualityComparison, mean_nll
from headrace_bench.quality.run import QualityPlan, QualityResult
from headrace_bench.quality.verdict import EXIT_CODES, QualityFinding, QualityVerdict
from headrace_core.evidence.intervals import Interval
from headrace_core.observations import Side

COLOURS = {QualityVerdict.NON_INFERIOR: "green", QualityVerdict.INFERIOR: "red", QualityVerdict.INCONCLUSIVE: "yellow"}
WIDTH = 80
MOST_DIFFERENCES = 6  # of each pair


def tables(plan: QualityPlan, result: QualityResult) -> Group:
    """Readable at 80 columns."""
    asked = plan.request
    title = f"{result.model}: {len(asked.texts)} texts, {asked.concurrency} at once, seed {asked.seed}"
    parts: list[RenderableType] = [_sides(result.sides, title), _pairs(result, plan)]
    for comparison, _ in result.pairs:
        parts += _differences(comparison, result.words)
    return Group(*parts, _verdict(result))


def _sides(sides: Sequence[Side], title: str) -> Table:
    table = _table(title, width=WIDTH)
    table.add_column("", style="bold cyan", no_wrap=True)
    table.add_column("what ran", ratio=1, overflow="fold")
    table.add_column("NLL by\ndecode", justify="right", no_wrap=True)
    table.add_column("NLL by\nprefill", justify="right", no_wrap=True)
    for side in sides:
        sound = [outcome for outcome in side.seen.outcomes.values() if not outcome.failed]
        scores = [mean_nll([read(item) for item in sound]) for read in (attrgetter("forced"), attrgetter("prompt"))]
        table.add_row(
            side.label, f"{escape(side.about)}\n[dim]{_facts(side)}[/]", *(f"{value:.4f}" for value in scores)
        )
    return table


def _facts(side: Side) -> str:
    tally = side.seen.tally
    facts = [side.dtype if side.dtype is side.kv_dtype else f"{side.dtype}, KV {side.kv_dtype}"]
    if tally.steps:
        facts.append(f"{tally.steps:,} steps")
    if tally.preemptions:
        facts.append(f"{tally.preemptions} preemptions ({tally.tokens_recomputed:,} tokens computed again)")
    if tally.cache_hits:
        facts.append(f"{tally.cache_hits:,} tokens from the prefix cache")
    return ", ".join(facts)


def _pairs(result: QualityResult, plan: QualityPlan) -> Table:
    """One column for each pair, one row for each measure; an interval is under its estimate."""
    table = _table("Are the outputs the same?")
    table.caption = (
        "NLL is in nats a token; its difference is the mean over texts, positive where the first is worse. Intervals "
        f"of {plan.rules.confidence:.0%}: Student's t over texts for means, Wilson's for shares."
    )
    table.add_column("", no_wrap=True)
    for comparison, _ in result.pairs:
        table.add_column(f"{comparison.candidate} against\n{comparison.base}", justify="right", no_wrap=True)
    columns = [_measures(comparison, finding) for comparison, finding in result.pairs]
    names = (
        "same greedy output", "  ties aside", "  tokens in common", "NLL by decode", "NLL by prefill",
        f"texts worse by {plan.rules.margin:g}", "largest token move", "  rounding explains", "verdict",
    )  # fmt: skip
    for name, *cells in zip(names, *columns, strict=True):
        table.add_row(name, *cells)
    return table


def _measures(comparison: QualityComparison, finding: QualityFinding) -> list[str]:
    agreement, texts = comparison.agreement, comparison.decode.texts
    move = max(comparison.decode.largest_move[1], comparison.prefill.largest_move[1])
    hurt = max(comparison.decode.hurt, comparison.prefill.hurt, key=lambda share: share.estimate)
    colour = "bold red" if comparison.beyond_rounding else "default"
    return [
        _share(agreement.equal, texts),
        _share(agreement.equal_but_ties, texts),
        f"{agreement.mean_prefix:.1f} of {agreement.output_tokens}",
        _difference(comparison.decode.difference),
        _difference(comparison.prefill.difference),
        _share(hurt, texts),
        f"[{colour}]{move:.1g}[/]",
        f"{comparison.rounding:.1g}",
        f"[bold {COLOURS[finding.verdict]}]{finding.verdict}[/]",
    ]


def _share(share: Interval, texts: int) -> str:
    if not texts:
        return "none ran on both"
    return f"{share.estimate * texts:.0f} of {texts}\n[dim]{100 * share.low:.1f} to {share.high:.1%}[/]"


def _difference(change: Interval) -> str:
    return f"{_signed(change.estimate)}\n[dim]{_signed(change.low)} to {_signed(change.high)}[/]"


def _signed(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:+.4f}" if abs(value) >= 0.00095 else f"{value:+.0e}"


def _differences(comparison: QualityComparison, words: Mapping[int, str]) -> Iterator[RenderableType]:
    found = comparison.agreement.differences
    if not found:
        return
    more = len(found) - MOST_DIFFERENCES
    rest = f" ({more} more in --json)" if more > 0 else ""
    title = f"Where {comparison.base} and {comparison.candidate} first write something else{rest}"
    table = _table(title, width=WIDTH)
    table.add_column("text", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("token", justify="right")
    for name in (comparison.base, comparison.candidate):
        table.add_column(f"{name} says", no_wrap=True, max_width=16, overflow="ellipsis")
    table.add_column("top-2 margins", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for item in found[:MOST_DIFFERENCES]:
        says = (escape(repr(words.get(token, token))) for token in (item.base_token, item.candidate_token))
        margins = f"{item.base_margin:.1g}, {item.candidate_margin:.1g}"
        kind = "[dim]tie[/]" if item.is_tie else "[bold red]real[/]"
        table.add_row(escape(item.text), str(item.index), *says, margins, kind)
    yield table


def _verdict(result: QualityResult) -> Panel:
    lines = []
    for comparison, finding in result.pairs:
        colour = COLOURS[finding.verdict]
        lines.append(
            f"[bold {colour}]{finding.verdict}[/]  {escape(finding.sentence)}\n[dim]{_rounding(comparison)}[/]"
        )
    return Panel("\n\n".join(lines), border_style=COLOURS[result.decision.verdict], width=WIDTH)


def _rounding(comparison: QualityComparison) -> str:
    if not comparison.decode.texts:
        return "No text ran on both."
    moved = max(comparison.decode.largest_move[1], comparison.prefill.largest_move[1]) > 0
    if not moved and not comparison.agreement.differences:
        return "Every number is equal to the last bit."
    if not comparison.beyond_rounding:
        return "Nothing moved further than rounding explains."
    return (
        "Something moved further than rounding explains: between equal number formats that is a fault, however small "
        "on average."
    )


def _table(title: str, *, width: int | None = None) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=box.SIMPLE_HEAD, width=width,
        pad_edge=False,
    )  # fmt: skip


def as_dict(plan: QualityPlan, result: QualityResult) -> dict[str, Any]:
    """The whole result, JSON-ready. NaN and infinities become None."""
    asked = plan.request
    value = {
        "model": result.model,
        "machine": dict(result.machine),
        "settings": {
            "texts": len(asked.texts),
            "text_tokens": asked.text_tokens,
            "output_tokens": asked.output_tokens,
            "concurrency": asked.concurrency,
            "seed": asked.seed,
            **dataclasses.asdict(plan.rules),
        },
        "sides": [_side_dict(side) for side in result.sides],
        "comparisons": [_comparison_dict(comparison, finding) for comparison, finding in result.pairs],
        "words": {str(token): word for token, word in result.words.items()},
        "verdict": result.decision.verdict.value,
        "sentence": result.decision.sentence,
        "exit_code": EXIT_CODES[result.decision.verdict],
    }
    clean: dict[str, Any] = _clean(value)
    return clean


def _side_dict(side: Side) -> dict[str, Any]:
    texts = {
        name: {
            "failed": outcome.failed,
            "nll_decode": [-value for value in outcome.forced],
            "nll_prefill": [-value for value in outcome.prompt],
            "output_ids": [choice.token for choice in outcome.greedy],
        }
        for name, outcome in side.seen.outcomes.items()
    }
    about = {"label": side.label, "about": side.about, "dtype": side.dtype.value, "kv_dtype": side.kv_dtype.value}
    return about | {"spread": side.seen.spread, "tally": dataclasses.asdict(side.seen.tally), "texts": texts}


def _comparison_dict(comparison: QualityComparison, finding: QualityFinding) -> dict[str, Any]:
    found = {"verdict": finding.verdict.value, "sentence": finding.sentence}
    return found | {"beyond_rounding": comparison.beyond_rounding} | dataclasses.asdict(comparison)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
