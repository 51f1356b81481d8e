"""The display of a load while it runs, and of the result in a table that fits 80 columns."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace_bench.serve.result import Goodput, MeanLengths, MeasuredRates, ServeResult
from headrace_bench.serve.run import LoadGoal, Ran
from headrace_bench.serve.steady import Steadiness, Trend
from headrace_client.load.client import LoadClient
from headrace_core.evidence.percentiles import duration
from headrace_core.evidence.slo import SloSet

NAMES = {"ttft": "TTFT", "itl": "ITL", "worst_gap": "worst gap", "tpot": "TPOT", "e2e": "E2E"}
REFRESH_PER_SECOND = 4
BACK = 5.0  # seconds over which a live rate is taken
ENOUGH = {"p95": 59, "p99": 299}  # values from which on the percentile has a 95 % upper bound at all


@dataclass(frozen=True, slots=True)
class TerminalDisplay:
    """Shows a load on a terminal, and nothing elsewhere."""

    console: Console

    @contextmanager
    def showing(self, goal: LoadGoal, client: LoadClient) -> Iterator[None]:
        """See `Display`."""
        if not self.console.is_terminal:
            yield
            return
        view = _View(goal, client, started=time.monotonic())
        with Live(
            get_renderable=view.render, console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=True
        ):
            yield


@dataclass(slots=True)
class _View:
    goal: LoadGoal
    client: LoadClient
    started: float
    seen: deque[tuple[float, int, int]] = field(default_factory=deque)

    def render(self) -> RenderableType:
        now, progress = time.monotonic(), self.client.progress
        elapsed = now - self.started
        self.seen.append((now, progress.sent, progress.ended))
        while len(self.seen) > 2 and self.seen[0][0] < now - BACK:
            self.seen.popleft()
        return Group(self._bar(elapsed), self._numbers())

    def _bar(self, elapsed: float) -> RenderableType:
        goal, line = self.goal, Table.grid(padding=(0, 1))
        phase = "warm-up" if elapsed < goal.warmup else goal.title
        if goal.seconds is not None and elapsed > goal.seconds:
            phase = "drain"
        total = goal.seconds or None
        bar = ProgressBar(total=total, completed=min(elapsed, total or 0.0), width=32, pulse=total is None)
        end = f" of {total:.0f}" if total else ""
        line.add_row(Text(f"{phase:<9}", style="bold"), bar, Text(f"{elapsed:.0f}{end} s"))
        return line

    def _numbers(self) -> RenderableType:
        progress, grid = self.client.progress, Table.grid(padding=(0, 2))
        sent, ended = self._rates()
        offered = f"{self.goal.rate:.3g}" if self.goal.rate else "-"
        failed = f"[red]{progress.failed}[/]" if progress.failed else "0"
        grid.add_row(
            f"offered/s [bold]{offered}[/]", f"sent/s [bold]{sent:.3g}[/]", f"answered/s [bold]{ended:.3g}[/]",
            f"in flight [bold]{progress.sent - progress.ended}[/]", f"failed [bold]{failed}[/]",
        )  # fmt: skip
        grid.add_row(
            f"ended [bold]{progress.ended}[/]", f"TTFT p50 [bold]{_middle(progress.ttft)}[/]",
            f"ITL p50 [bold]{_middle(progress.gaps)}[/]",
        )  # fmt: skip
        return grid

    def _rates(self) -> tuple[float, float]:
        (then, sent, ended), (now, sent_now, ended_now) = self.seen[0], self.seen[-1]
        seconds = max(1e-9, now - then)
        return ((sent_now - sent) / seconds, (ended_now - ended) / seconds) if now > then else (0.0, 0.0)


def result_table(ran: Ran) -> RenderableType:
    """The result of a run."""
    result = ran.result
    table = Table(title=f"{ran.endpoint.model} at {ran.endpoint.url}", title_justify="left", title_style="bold")
    for name in ("", "count", "p50", "p95", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    rows = {NAMES[name]: found for name, found in result.latency_seconds.items()}
    for name, found in rows.items():
        values = (found.p50, found.p95, found.p99, found.max)
        table.add_row(name, str(found.count), *(duration(value) for value in values))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(ran):
        facts.add_row(name, text)
    return Group(*([table] if rows else []), facts)


def _facts(ran: Ran) -> Iterator[tuple[str, str]]:
    result = ran.result
    yield "load", escape(ran.mode) + (", [yellow]interrupted[/]" if ran.interrupted else "")
    yield "requests", _requests(result)
    yield "rates", _rates(result)
    if result.goodput:
        yield "goodput", _goodput(result.goodput, ran.asked.slo)
    if result.lengths:
        yield "lengths", _lengths(result.lengths)
    if ran.options.concurrency is None:
        yield "steady", _steady(result.steadiness)
    yield "client", _client(ran)
    for note in ran.probed.notes:
        yield "note", escape(note)
    few = _few(result)
    if few:
        yield "note", few


def _requests(result: ServeResult) -> str:
    text = f"{result.completed} of {result.requests} answered"
    if result.warmup_requests:
        text += f" ({result.warmup_requests} more to warm up)"
    if not result.errors:
        return text + ", no errors"
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.errors.items())
    return f"{text}; [red]{escape(kinds)}[/]; the first: {escape(result.first_error)}"


def _rates(result: ServeResult) -> str:
    parts = []
    if result.offered_per_second is not None:
        parts.append(f"offered {result.offered_per_second:.3g}/s")
    if result.in_window is not None:
        parts.append(f"answered in the window {_rate(result.in_window)}")
    parts.append(f"until the last answer, {result.until_last.seconds:.1f} s, {_rate(result.until_last)}")
    return "; ".join(parts)


def _rate(rates: MeasuredRates) -> str:
    return f"{rates.requests:.3g}/s with {rates.tokens:.1f} tokens/s"


def _goodput(goodput: Goodput, slo: SloSet) -> str:
    limits = [
        f"{NAMES[name]}{f' p{slo.itl_percentile:g}' if name == 'itl' else ''} <= {duration(limit)}"
        for name in ("ttft", "itl", "tpot", "e2e")
        if (limit := slo.threshold(name)) is not None
    ]
    return (
        f"[bold]{goodput.per_second:.3g}/s[/]: {goodput.good} of {goodput.planned} good, "
        f"{goodput.attainment:.1%} ({goodput.low:.1%} to {goodput.high:.1%} at 95 %), with {', '.join(limits)}"
    )


def _lengths(lengths: MeanLengths) -> str:
    text = f"prompts {lengths.prompt:.1f}, answers {lengths.output:.1f} tokens on average"
    if lengths.short_answers:
        text += f"; {lengths.short_answers} answers ended before the length asked for"
    if lengths.chunks_per_token is not None and lengths.chunks_per_token < 0.98:
        text += f"; {lengths.chunks_per_token:.2f} chunks a token, so ITL is between chunks"
    if lengths.cached:
        text += f"; {lengths.cached:.0%} of the prompt tokens were cached"
    return text


def _steady(seen: Steadiness) -> str:
    change = f"under way {_percent(seen.in_flight)}, TTFT {_percent(seen.ttft)} over the window"
    match seen.trend:
        case Trend.UNKNOWN:
            return "too few requests to tell"
        case Trend.OVERLOADED:
            return f"[red]no: the queue grows[/] ({change}); the latencies depend on the length of the window"
        case Trend.WARMING:
            return f"[yellow]no: it is still getting faster[/] ({change}); give --warmup more"
    return f"yes ({change})"


def _client(ran: Ran) -> str:
    health, lag = ran.health, ran.result.send_lag_seconds
    text = f"{health.cpu_share:.0%} of a core"
    text += f", loop late p99 {duration(health.loop_lag.p99)}" if health.loop_lag else ""
    text += f", sent late p99 {duration(lag.p99)}, max {duration(lag.max)}" if lag else ""
    if not ran.limits:
        return f"not the limit: {text}"
    reasons = "; ".join(ran.limits)
    return f"[red]the client was the limit[/], not only the server: {escape(reasons)} ({text})"


def _few(result: ServeResult) -> str:
    found = result.latency_seconds.get("ttft")
    lacking = [name for name, enough in ENOUGH.items() if found is not None and found.count < enough]
    if not lacking:
        return ""
    wanted = ", ".join(f"{name} {ENOUGH[name]}" for name in lacking)
    return f"[dim]too few requests for an upper bound (95 %) of TTFT: it takes {wanted} of them[/]"


def _percent(change: float | None) -> str:
    return "?" if change is None else f"{change:+.0%}"


def _middle(values: Sequence[float]) -> str:
    return duration(statistics.median(values)) if values else "-"
