"""The metric table of core as Prometheus series. Written by the step thread, rendered by the HTTP server.

A request's samples are counted when it ends, since only then is it known whether it lived under one config.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import prometheus_client

from headrace_core import metric_names as names
from headrace_core.config import EngineConfig
from headrace_core.events import FinishReason, RejectReason, SchedulerStats, StepPlan
from headrace_core.metric_names import Metric, MetricKind
from headrace_core.slo import SloSet

MIXED = "mixed"
# Series of older generations are dropped: Prometheus has them, and each costs a scrape some hundred lines.
KEPT_GENERATIONS = 4


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one request, in seconds. `generation` is the one that it was admitted under."""

    arrival: float
    prompt_tokens: int
    generation: int
    started: float | None = None
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float | None:
        """Arrival to first token."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def gaps(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.tokens)]


class EngineMetrics:
    """All series of one engine in a registry of its own."""

    def __init__(self, model_name: str, slo: SloSet | None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus_client.CollectorRegistry()
        self._model = model_name
        self._slo = slo
        self._metrics = {metric.name: self._make(metric) for metric in names.ALL_METRICS}
        self._children: defaultdict[str, dict[tuple[str, tuple[str, ...]], None]] = defaultdict(dict)
        self._revision = ""
        self._generation = 1
        self._preemptions = self._recomputed = 0
        for metric in names.ALL_METRICS:
            if metric.labels == names.VLLM_LABELS:
                self._plain(metric)  # born at 0

    def _make(self, metric: Metric) -> Any:
        about = {
            "name": metric.name,
            "documentation": metric.doc,
            "labelnames": metric.labels,
            "registry": self.registry,
        }
        if metric.kind is MetricKind.COUNTER:
            return prometheus_client.Counter(**about)  # type: ignore[arg-type]
        if metric.kind is MetricKind.GAUGE:
            return prometheus_client.Gauge(**about)  # type: ignore[arg-type]
        threshold = self._slo.threshold(metric.slo) if self._slo and metric.slo else None
        buckets = names.buckets_with(metric.buckets, threshold)
        return prometheus_client.Histogram(**about, buckets=buckets)  # type: ignore[arg-type]

    def render(self) -> bytes:
        """The exposition text."""
        return prometheus_client.generate_latest(self.registry)

    # What is in force

    def set_config(self, config: EngineConfig, *, generation: int, revision: str) -> None:
        """A config came into force. Its series start at 0 here, so that a window sees their birth."""
        self._generation, self._revision = generation, revision
        info = self._metrics[names.CONFIG_INFO.name]
        info.clear()
        for knob, value in config.hot_values().items():
            info.labels(self._model, str(generation), revision, knob, _text(value)).set(1)
        self._plain(names.CONFIG_GENERATION).set(generation)
        for metric in names.ALL_METRICS:
            if metric.labels == names.DECISION_LABELS:
                self._of(metric, str(generation))
        for old in [key for key in self._children if key != MIXED and int(key) <= generation - KEPT_GENERATIONS]:
            for name, labels in self._children.pop(old):
                self._metrics[name].remove(*labels)

    def set_identity(self, *, version: str, device: str, dtype: str, pretend_gpu: bool, started_at: float) -> None:
        """What runs where, since when (unix seconds)."""
        labels = (self._model, version, device, dtype, str(pretend_gpu).lower())
        self._metrics[names.ENGINE_INFO.name].labels(*labels).set(1)
        self._plain(names.START_TIME).set(started_at)

    def set_cache(self, config: EngineConfig, num_blocks: int) -> None:
        """The KV cache's configuration."""
        labels = (self._model, str(config.block_size), str(num_blocks), str(config.gpu_memory_utilization))
        self._metrics[names.VLLM_CACHE_INFO.name].labels(*labels).set(1)

    # What happens

    def step(self, plan: StepPlan, generation: int, *, seconds: float, failed: bool) -> None:
        """A step ended; its work counts for the config it was planned under."""
        label = str(generation)
        self._of(names.STEP_TIME, label).observe(seconds)
        self._of(names.BUSY_SECONDS, label).inc(seconds)
        if failed:
            self._of(names.STEP_FAILURES, label).inc()

    def stats(self, stats: SchedulerStats) -> None:
        """The scheduler's state after a step or a command."""
        gauges = (
            (names.RUNNING, stats.running), (names.VLLM_RUNNING, stats.running), (names.WAITING, stats.waiting),
            (names.VLLM_WAITING, stats.waiting), (names.KV_USAGE, stats.kv_usage),
            (names.VLLM_KV_USAGE, stats.kv_usage),
        )  # fmt: skip
        for metric, value in gauges:
            self._plain(metric).set(value)
        label = str(self._generation)
        preempted, self._preemptions = stats.preemptions - self._preemptions, stats.preemptions
        recomputed, self._recomputed = stats.tokens_recomputed - self._recomputed, stats.tokens_recomputed
        if preempted:
            self._of(names.PREEMPTIONS, label).inc(preempted)
            self._plain(names.VLLM_PREEMPTIONS).inc(preempted)
        if recomputed:
            self._of(names.RECOMPUTED_TOKENS, label).inc(recomputed)

    def admitted(self, prompt_tokens: int) -> None:
        """A request was queued."""
        self._of(names.PROMPT_TOKENS, str(self._generation)).inc(prompt_tokens)
        self._plain(names.VLLM_PROMPT_TOKENS).inc(prompt_tokens)

    def rejected(self, reason: RejectReason) -> None:
        """A request was refused."""
        self._of(names.REJECTED, str(self._generation), str(reason)).inc()

    def token(self, times: RequestTimes, generation: int) -> None:
        """A token was generated; its time is the last in `times`."""
        self._of(names.OUTPUT_TOKENS, str(generation)).inc()
        self._plain(names.VLLM_GENERATION_TOKENS).inc()
        if len(times.tokens) == 1:
            self._plain(names.VLLM_TTFT).observe(times.tokens[0] - times.arrival)
        else:
            self._plain(names.VLLM_ITL).observe(times.tokens[-1] - times.tokens[-2])

    def finished(self, times: RequestTimes, reason: FinishReason, *, now: float) -> None:
        """A request ended at `now`."""
        label = str(self._generation) if times.generation == self._generation else MIXED
        self._of(names.REQUESTS, label, str(reason)).inc()
        self._metrics[names.VLLM_SUCCESS.name].labels(self._model, str(reason)).inc()
        ttft, gaps, e2e = times.ttft, times.gaps, now - times.arrival
        if times.started is not None:
            self._pair(names.QUEUE_TIME, names.VLLM_QUEUE, label, times.started - times.arrival)
        if ttft is not None:
            self._of(names.TTFT, label).observe(ttft)
        for gap in gaps:
            self._of(names.ITL, label).observe(gap)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._pair(names.E2E, names.VLLM_E2E, label, e2e)
            if gaps:
                self._pair(names.TPOT, names.VLLM_TPOT, label, sum(gaps) / len(gaps))
        self._judge(label, reason, ttft=ttft, gaps=gaps, e2e=e2e)

    def _judge(self, label: str, reason: FinishReason, *, ttft: float | None, gaps: list[float], e2e: float) -> None:
        if self._slo is None:
            return
        if reason is FinishReason.ABORT:
            # Nobody knows how it would have ended; but what was broken before the client left stays broken.
            if self._slo.judge(e2e if ttft is None else ttft, gaps, e2e):
                return
            good = False
        else:
            good = reason is not FinishReason.ERROR and self._slo.judge(ttft, gaps, e2e)
        self._of(names.SLO_TOTAL, label).inc()
        if good:
            self._of(names.SLO_GOOD, label).inc()

    def _pair(self, own: Metric, vllm: Metric, label: str, value: float) -> None:
        self._of(own, label).observe(value)
        self._plain(vllm).observe(value)

    def _of(self, metric: Metric, generation: str, *more: str) -> Any:
        """The child of a metric with decision labels."""
        labels = (self._model, generation, self._revision, *more)
        self._children[generation][metric.name, labels] = None
        return self._metrics[metric.name].labels(*labels)

    def _plain(self, metric: Metric) -> Any:
        """The child of a metric that is labelled by model alone."""
        return self._metrics[metric.name].labels(self._model)


def _text(value: object) -> str:
    """A knob's value as JSON spells it; empty for none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
