"""An `EngineMetrics` driven by hand, and how to read it."""

from collections.abc import Iterable
from typing import Any

from headrace_core import metric_names as names
from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import resolve
from headrace_core.metric_names import Metric
from headrace_core.scheduler.events import Request, ScheduledSeq, StepPlan
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.metrics.generation_record import GenerationRecord

SLO = SloSet(ttft_seconds=0.37, itl_seconds=0.0517, e2e_seconds=7.7)


def made(slo: SloSet | None = SLO, **options: Any) -> EngineMetrics:
    metrics = EngineMetrics("m", slo, **options)
    metrics.set_config(resolve({}), generation=1, revision="r1")
    return metrics


def value(metrics: EngineMetrics, metric: Metric, suffix: str = "", **labels: str) -> float:
    """Sum of the series of a metric with these labels."""
    wanted = metric.series + suffix
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == wanted and labels.items() <= sample.labels.items()
    )


def series(metrics: EngineMetrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def bounds(metrics: EngineMetrics, metric: Metric, **labels: str) -> list[float]:
    wanted = f"{metric.name}_bucket"
    return [
        float(sample.labels["le"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == wanted and labels.items() <= sample.labels.items()
    ]


def request(name: str = "a", prompt: int = 10, output: int = 4, **more: Any) -> Request:
    return Request(request_id=name, prompt_token_ids=tuple(range(prompt)), max_tokens=output, arrival=0.0, **more)


def rows(name: str, start: int, count: int, *, prefill: bool = True, fork_of: str | None = None) -> ScheduledSeq:
    return ScheduledSeq(
        request_id=name, start=start, token_ids=(1,) * count, block_table=(), samples=True, is_prefill=prefill,
        fork_of=fork_of,
    )  # fmt: skip


def step(metrics: EngineMetrics, *seqs: ScheduledSeq, preempted: Iterable[str] = (), **options: Any) -> None:
    plan = StepPlan(step=1, generation=1, seqs=seqs, preempted=tuple(preempted))
    metrics.step(plan, 1, **({"seconds": 0.01, "failed": False} | options))


def served(
    metrics: EngineMetrics, name: str = "a", *, times: Iterable[float] = (0.2, 0.25), **more: Any
) -> GenerationRecord:
    """A request that started at 0.1 and got tokens at `times`; it has not ended."""
    found = begun(metrics, request(name, **more), now=0.05)
    found.start(0.1, found.cached_tokens)
    for at in times:
        found.token(at)
        metrics.token(found, metrics._generation)
    return found


def begun(metrics: EngineMetrics, new: Request, *, now: float) -> GenerationRecord:
    """The record of a request that was queued at `now`."""
    found = GenerationRecord.of(new)
    metrics.begin(found, now=now)
    return found


def books(metrics: EngineMetrics) -> dict[str, float]:
    kinds = {kind: value(metrics, names.TOKENS, kind=kind) for kind in names.TOKENS.values}
    return kinds | {"undecided": value(metrics, names.UNDECIDED_TOKENS)}
