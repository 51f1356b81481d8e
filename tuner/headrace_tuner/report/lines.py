"""Lines for people: trials as they end, the verdict."""

from __future__ import annotations

from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel

from headrace_api.v1alpha1.records import (
    StudyRecord,
    StudyVerdict,
    TrialRecord,
    TrialState,
    VerificationRecord,
)
from headrace_core.evidence.percentiles import duration
from headrace_core.knobs.table import KNOB_BY_NAME

COLOURS = {
    TrialState.COMPLETE: "green",
    TrialState.INFEASIBLE: "yellow",
    TrialState.FAILED: "red",
    TrialState.VOID: "dim",
}


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
    """The study's verdict, its message and the proposed knobs."""
    verdict = study.verdict.value if study.verdict else study.phase.value
    lines = [escape(study.message)]
    if study.proposal is not None:
        lines += [f"  {KNOB_BY_NAME[key].camel}: {value}" for key, value in study.proposal.knobs.values().items()]
    colour = "green" if study.verdict is StudyVerdict.IMPROVED else "yellow"
    return Panel("\n".join(lines), title=f"[bold]{verdict}[/]", title_align="left", border_style=colour)


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
