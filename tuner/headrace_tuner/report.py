"""Tables for people: load as it runs and ended, trials as they end, the verdict."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from headrace_api.v1alpha1.records import StudyRecord, TrialRecord, TrialState, Verdict, VerificationRecord
from headrace_core.config import KNOB_BY_NAME
from headrace_tuner.summary import Summary

NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}
COLOURS = {
    TrialState.COMPLETE: "green",
    TrialState.INFEASIBLE: "yellow",
    TrialState.FAILED: "red",
    TrialState.VOID: "dim",
}


def load_table(summary: Summary, *, title: str) -> RenderableType:
    """What a run of load showed."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("", "count", "p50", "p95", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right")
    rows = {NAMES[name]: found for name, found in summary.latency_seconds.items()}
    if summary.send_lag_seconds:
        rows["send lag"] = summary.send_lag_seconds
    for name, found in rows.items():
        values = (found.p50, found.p95, found.p99, found.max)
        table.add_row(name, str(found.count), *(duration(value) for value in values))
    return Group(table, _counts(summary))


def _counts(summary: Summary) -> str:
    errors = ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())
    text = (
        f"{summary.completed} of {summary.requests} requests in {summary.seconds:.1f} s: "
        f"{summary.requests_per_second:.2f} requests/s, {summary.output_tokens_per_second:.1f} output tokens/s"
    )
    return text + (f"\n[red]errors: {errors}[/]; the first: {escape(summary.first_error)}" if errors else "; no errors")


def duration(seconds: float) -> str:
    """Three significant digits: `12.3 ms`, `1.20 s`."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def trial_line(record: TrialRecord | VerificationRecord) -> str:
    """One ended window, for a log that grows downwards."""
    if isinstance(record, TrialRecord):
        name, about = f"trial {record.number}", record.reason
    else:
        arm = "winner" if record.winner else "baseline"
        name, about = f"block {record.number // 2 + 1} {arm}", record.reason
    colour, measures = COLOURS[record.state], record.measures
    numbers = ""
    if measures is not None:
        numbers = (
            f"goodput {measures.goodput or 0:.2f}/s  attainment {measures.attainment or 0:.1%}  "
            f"TTFT p95 {_or_dash(measures.ttft_p95)}  ITL p95 {_or_dash(measures.itl_p95)}  "
        )
    knobs = " ".join(f"{KNOB_BY_NAME[key].camel}={value}" for key, value in record.knobs.values().items())
    return (
        f"[bold]{name:<18}[/] [{colour}]{record.state.value:<10}[/] {numbers}[cyan]{knobs}[/] [dim]{escape(about)}[/]"
    )


def verdict_panel(study: StudyRecord) -> RenderableType:
    """The end of a study."""
    verdict = study.verdict.value if study.verdict else study.phase.value
    lines = [escape(study.message)]
    if study.proposal is not None:
        lines += [f"  {KNOB_BY_NAME[key].camel}: {value}" for key, value in study.proposal.knobs.values().items()]
    colour = "green" if study.verdict is Verdict.IMPROVED else "yellow"
    return Panel("\n".join(lines), title=f"[bold]{verdict}[/]", title_align="left", border_style=colour)


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
