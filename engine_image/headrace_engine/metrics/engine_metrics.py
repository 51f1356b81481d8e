"""Core's metric table as Prometheus series. Written by the step thread, rendered by the HTTP server.

A request's samples are counted when it ends, since only then is it known whether it ran under one config; if it did
not, they go to the generation `mixed`. No label value comes from a client, so clients cannot create series.
"""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client

from headrace_core import metric_names as names
from headrace_core.evidence.slo import TARGETS, SloSet
from headrace_core.knobs.resolve import EngineConfig
from headrace_core.knobs.table import spelled
from headrace_core.metric_names import Metric, MetricKind
from headrace_core.scheduler.events import (
    FinishReason,
    RejectReason,
    SchedulerStats,
    StepPlan,
)
from headrace_core.sim.roofline import ModelShape, Peaks
from headrace_core.sim.step_time import StepTimeModel
from headrace_engine.metrics import decision_series
from headrace_engine.metrics.decision_series import DecisionSeries
from headrace_engine.metrics.generation_record import GenerationRecord
from headrace_engine.metrics.series import Histogram, SeriesTable, Value
from headrace_engine.metrics.step_metrics import StepMetrics

MIXED = "mixed"
# Series of older generations are dropped: Prometheus has them, and each adds about a hundred lines to a scrape.
KEPT_GENERATIONS = 4
WELL = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_NEVER = 2**31


class EngineMetrics:
    """All series of one engine, in their own registry. `cost_model` may already be fitted to the machine."""

    def __init__(
        self, model_name: str, slo: SloSet | None, *, max_model_len: int | None = None,
        cost_model: StepTimeModel | None = None,
    ) -> None:  # fmt: skip
        self._model = model_name
        self._max_model_len = max_model_len or _NEVER
        self._table = SeriesTable(names.ALL_METRICS, before_scrape=self._before_scrape)
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(self._table)
        self._values: dict[str, Value] = {}
        self._histograms: dict[str, Histogram] = {}
        self._children: dict[tuple[str, str], Value] = {}
        self._slo: SloSet | None = None
        self._slo_id = ""
        self._targets: dict[str, SloSet] = {}
        self._series: dict[str, DecisionSeries] = {}
        self._live: dict[str, GenerationRecord] = {}
        self._revision, self._generation = "", 1
        self._seen: SchedulerStats | None = None
        self._busy = 0.0  # of the generation in force
        self._step_age: Callable[[], float] = lambda: 0.0
        self.set_slo(slo)
        for metric in names.ALL_METRICS:
            self._bear(metric)
        self._steps = StepMetrics(self._table, model_name, cost_model or StepTimeModel())
        self._current = self._of(str(self._generation))

    def render(self) -> bytes:
        """All series in Prometheus's text format."""
        return self._table.text().encode()

    @property
    def cost_model(self) -> StepTimeModel:
        """The step-time model, which learns from each step."""
        return self._steps.cost_model

    @property
    def slo(self) -> SloSet | None:
        """The SLO set that requests are judged by."""
        return self._slo

    # What is in force

    def set_slo(self, slo: SloSet | None) -> None:
        """Judge by another SLO set. `set_config` must follow; the new generation's histograms get the new bounds.

        Series of the generation `mixed` start anew; the `vllm:` ones keep their first bounds.
        """
        with self._table.lock:
            self._slo, self._slo_id = slo, names.slo_id(slo)
            self._targets = {} if slo is None else _single_targets(slo)
            self._table.drop(names.SLO_THRESHOLD, lambda _: True)
            for target in self._targets:
                threshold = self._table.value(names.SLO_THRESHOLD, self._model, self._slo_id, target)
                threshold.value = (slo and slo.threshold(target)) or 0.0
            self._drop_generations(lambda generation: generation == MIXED)

    def set_config(self, config: EngineConfig, *, generation: int, revision: str) -> None:
        """A config came into force. Its series start at 0 here, so that a window over them sees their start."""
        with self._table.lock:
            if generation != self._generation:
                self._busy = 0.0
            elif revision != self._revision:
                self._drop_generations(lambda known: known == str(generation))
            self._generation, self._revision = generation, revision
            self._table.drop(names.CONFIG_INFO, lambda _: True)
            for knob, value in config.hot_values().items():
                labels = (self._model, str(generation), revision, knob, spelled(value))
                self._table.value(names.CONFIG_INFO, *labels).value = 1
            self._values[names.CONFIG_GENERATION.name].value = generation
            self._drop_generations(lambda known: known != MIXED and int(known) <= generation - KEPT_GENERATIONS)
            self._current = self._of(str(generation))

    def set_identity(self, *, version: str, device: str, dtype: str, pretend_gpu: bool, started_at: float) -> None:
        """Version, device and number format of the engine, and its start in unix seconds."""
        labels = (self._model, version, device, dtype, str(pretend_gpu).lower())
        self._table.value(names.ENGINE_INFO, *labels).value = 1
        self._values[names.START_TIME.name].value = started_at

    def set_cache(self, config: EngineConfig, num_blocks: int) -> None:
        """The KV cache's configuration, as the labels of `vllm:cache_config_info`."""
        about = (
            str(config.block_size), str(num_blocks), str(config.gpu_memory_utilization), config.kv_cache_dtype,
            str(config.enable_prefix_caching),
        )  # fmt: skip
        self._table.value(names.VLLM_CACHE_INFO, self._model, names.VLLM_ENGINE, *about).value = 1

    def set_model(self, shape: ModelShape, peaks: Peaks) -> None:
        """The model's shape and the device's peaks, from which MFU and MBU are computed."""
        with self._table.lock:
            self._steps.set_model(shape, peaks)

    def watch_step(self, age: Callable[[], float]) -> None:
        """`age` gives the seconds that the current step has been running, 0 between steps; called at each scrape."""
        self._step_age = age

    # What happens

    def begin(self, record: GenerationRecord, *, now: float) -> None:
        """A request was queued at `now`. Pass the same record to `token` and `finished`."""
        record.queued, record.config_generation = now, self._generation
        lead = self._live.get(record.fork_of) if record.fork_of else None
        if lead is not None:
            record.siblings = lead.siblings
            record.siblings.n += 1
        self._live[record.id] = record
        with self._table.lock:
            self._current.add(names.PROMPT_TOKENS, record.prompt_tokens)

    def rejected(self, reason: RejectReason, *, retry_after: float | None = None) -> None:
        """A request was refused; `retry_after` is how many seconds its client was told to wait."""
        with self._table.lock:
            self._current.add(names.REJECTED, 1, str(reason))
            if reason is RejectReason.QUEUE_FULL:
                self._children[names.VLLM_REJECTIONS.name, str(reason)].value += 1
            if retry_after is not None:
                self._current.observe(names.RETRY_AFTER, retry_after)

    def step(self, plan: StepPlan, generation: int, *, seconds: float, failed: bool) -> None:
        """A step ended; its work counts for `generation`, the config it was planned under."""
        with self._table.lock:
            series = self._current if generation == self._generation else self._of(str(generation))
            series.observe(names.STEP_TIME, seconds)
            self._add_busy(series, seconds)
            self._account(series, plan)
            if failed:
                series.add(names.STEP_FAILURES)
            else:
                self._steps.observe(series, plan, seconds)

    def stats(self, stats: SchedulerStats) -> None:
        """The scheduler's state after a step or a command."""
        with self._table.lock:
            values = self._values
            values[names.RUNNING.name].value = values[names.VLLM_RUNNING.name].value = stats.running
            values[names.WAITING.name].value = values[names.VLLM_WAITING.name].value = stats.waiting
            values[names.WAITING_TOKENS.name].value = stats.waiting_tokens
            values[names.KV_USAGE.name].value = values[names.VLLM_KV_USAGE.name].value = stats.kv_usage
            self._children[names.VLLM_WAITING_BY_REASON.name, "capacity"].value = stats.waiting
            blocks = self._children
            blocks[names.KV_BLOCKS.name, "used"].value = stats.blocks_total - stats.blocks_free
            blocks[names.KV_BLOCKS.name, "cached"].value = stats.blocks_cached
            blocks[names.KV_BLOCKS.name, "free"].value = stats.blocks_free - stats.blocks_cached
            seen, self._seen = self._seen, stats
            self._grow(names.PREEMPTIONS, names.VLLM_PREEMPTIONS, stats.preemptions - (seen.preemptions if seen else 0))
            queries = stats.cache_queries - (seen.cache_queries if seen else 0)
            self._grow(names.CACHE_QUERIES, names.VLLM_CACHE_QUERIES, queries)
            self._grow(names.CACHE_HITS, names.VLLM_CACHE_HITS, stats.cache_hits - (seen.cache_hits if seen else 0))

    def token(self, record: GenerationRecord, generation: int) -> None:
        """A token was generated; the record already includes it."""
        gap = record.newest_gap
        with self._table.lock:
            series = self._current if generation == self._generation else self._of(str(generation))
            series.add(names.OUTPUT_TOKENS)
            self._values[names.VLLM_GENERATION_TOKENS.name].value += 1
            if gap is not None:
                self._histograms[names.VLLM_ITL.name].observe(gap)
                return
            self._histograms[names.VLLM_TTFT.name].observe(record.ttft or 0.0)
            self._values[names.VLLM_PROMPT_TOKENS.name].value += record.prompt_tokens
            self._values[names.VLLM_PROMPT_CACHED.name].value += record.cached_tokens
            source = names.VLLM_PROMPT_BY_SOURCE.name
            self._children[source, "local_cache_hit"].value += record.cached_tokens
            self._children[source, "local_compute"].value += record.prompt_tokens - record.cached_tokens

    def finished(self, record: GenerationRecord, reason: FinishReason, *, now: float, corrupted: bool = False) -> None:
        """A request ended at `now`. `corrupted`: because its logits were not numbers."""
        with self._table.lock:
            self._live.pop(record.id, None)
            same = record.config_generation == self._generation
            series = self._current if same else self._of(MIXED)
            series.add(names.REQUESTS, 1, str(reason))
            self._children[names.VLLM_SUCCESS.name, str(reason)].value += 1
            self._values[names.VLLM_CORRUPTED.name].value += corrupted
            self._decide(series, record, useful=reason in WELL)
            gaps, e2e = record.take_gaps(), now - record.arrival
            if record.started is not None:
                series.observe(names.QUEUE_TIME, record.started - record.arrival)
            if record.ttft is not None:
                series.observe(names.TTFT, record.ttft)
                series.observe_all(names.ITL, gaps)
            if reason in WELL:
                self._ended_well(series, record, gaps=gaps, e2e=e2e)
            self._judge(series, reason, ttft=record.ttft, gaps=gaps, e2e=e2e)

    def _ended_well(self, series: DecisionSeries, record: GenerationRecord, *, gaps: list[float], e2e: float) -> None:
        first = record.first_token
        decode = 0.0 if first is None or record.last_token is None else record.last_token - first
        series.observe(names.E2E, e2e)
        series.observe(names.DECODE_TIME, decode)
        if gaps:
            series.observe(names.TPOT, decode / len(gaps))
        vllm = self._histograms
        vllm[names.VLLM_E2E.name].observe(e2e)
        vllm[names.VLLM_DECODE.name].observe(decode)
        vllm[names.VLLM_TPOT.name].observe(decode / len(gaps) if gaps else 0.0)
        if record.started is not None and first is not None:
            prefill = first - record.started
            queued = record.arrival if record.queued is None else record.queued
            series.observe(names.PREFILL_TIME, prefill)
            vllm[names.VLLM_PREFILL.name].observe(prefill)
            vllm[names.VLLM_INFERENCE.name].observe(prefill + decode)
            vllm[names.VLLM_QUEUE.name].observe(record.started - queued)
        vllm[names.VLLM_REQUEST_PROMPT.name].observe(record.prompt_tokens)
        vllm[names.VLLM_REQUEST_GENERATION.name].observe(record.output_tokens)
        vllm[names.VLLM_REQUEST_COMPUTED.name].observe(record.prompt_tokens - record.cached_tokens)
        vllm[names.VLLM_REQUEST_PREEMPTIONS.name].observe(record.preemptions)
        vllm[names.VLLM_PARAMS_MAX_TOKENS.name].observe(record.max_tokens)
        if record.siblings.end(record.output_tokens):
            vllm[names.VLLM_PARAMS_N.name].observe(record.siblings.n)
            vllm[names.VLLM_MAX_GENERATION.name].observe(record.siblings.longest)

    def _judge(
        self, series: DecisionSeries, reason: FinishReason, *, ttft: float | None, gaps: list[float], e2e: float
    ) -> None:
        if self._slo is None:
            return
        known = ttft
        if reason is FinishReason.ABORT:
            # How it would have ended is unknown; but a target missed before the client left counts as missed.
            known = e2e if ttft is None else ttft
            if self._slo.judge(known, gaps, e2e):
                return
        slo = self._slo_id
        series.add(names.SLO_TOTAL, 1, slo)
        if reason is not FinishReason.ERROR and self._slo.judge(known, gaps, e2e):
            series.add(names.SLO_GOOD, 1, slo)
            return
        for target, single in self._targets.items():
            if reason is FinishReason.ERROR or not single.judge(known, gaps, e2e):
                series.add(names.SLO_MISSES, 1, slo, target)

    # Tokens by what became of them

    def _account(self, series: DecisionSeries, plan: StepPlan) -> None:
        live, recomputed, fresh = self._live, 0, 0
        for seq in plan.seqs:
            record = live.get(seq.request_id)
            if record is not None:
                again = record.computed(seq)
                recomputed += again
                fresh += len(seq.token_ids) - again
        for request_id in plan.preempted:
            if request_id in live:
                live[request_id].preemptions += 1
        self._values[names.UNDECIDED_TOKENS.name].value += fresh
        if recomputed:
            series.add(names.TOKENS, recomputed, "recomputed")

    def _decide(self, series: DecisionSeries, record: GenerationRecord, *, useful: bool) -> None:
        series.add(names.TOKENS, record.fresh, "useful" if useful else "discarded")
        self._values[names.UNDECIDED_TOKENS.name].value -= record.fresh

    # Series

    def _before_scrape(self) -> None:
        busy = self._current.value(names.BUSY_SECONDS)
        # A running step counts already. The maximum keeps the counter from falling when the step ends.
        busy.value = max(busy.value, self._busy + self._step_age())
        self._steps.publish()

    def _add_busy(self, series: DecisionSeries, seconds: float) -> None:
        busy = series.value(names.BUSY_SECONDS)
        if series is self._current:
            self._busy += seconds
            busy.value = max(busy.value, self._busy)
        else:
            busy.value += seconds

    def _grow(self, own: Metric, vllm: Metric, amount: int) -> None:
        if amount > 0:
            self._current.add(own, amount)
            self._values[vllm.name].value += amount

    def _of(self, generation: str) -> DecisionSeries:
        """The series of a generation, made if missing; of requests under several generations for `MIXED`."""
        found = self._series.get(generation)
        if found is None:
            revision = MIXED if generation == MIXED else self._revision
            found = DecisionSeries(self._table, (self._model, generation, revision), self._slo)
            self._series[generation] = found
        return found

    def _drop_generations(self, unwanted: Callable[[str], bool]) -> None:
        gone = [generation for generation in self._series if unwanted(generation)]
        for generation in gone:
            del self._series[generation]
        if gone:
            for metric in decision_series.METRICS:
                self._table.drop(metric, lambda labels: labels[1] in gone)

    def _bear(self, metric: Metric) -> None:
        """Make the series of a metric if all its labels are known at the start."""
        base: tuple[str, ...]
        if metric.labels[:2] == names.VLLM_LABELS:
            base = (self._model, names.VLLM_ENGINE)
        elif metric.labels[:1] == names.STATE_LABELS and "config_generation" not in metric.labels:
            base = (self._model,)
        else:
            return
        if metric.kind is MetricKind.HISTOGRAM:
            self._histograms[metric.name] = self._table.histogram(metric, *base, bounds=self._bounds(metric))
        elif len(metric.labels) == len(base):
            self._values[metric.name] = self._table.value(metric, *base)
        else:
            for value in metric.values:
                self._children[metric.name, value] = self._table.value(metric, *base, value)

    def _bounds(self, metric: Metric) -> tuple[float, ...]:
        found = decision_series.bounds(metric, self._slo)
        if not metric.up_to_model_len:
            return found
        return tuple(bound for bound in found if bound <= self._max_model_len) or found[:1]


def _single_targets(slo: SloSet) -> dict[str, SloSet]:
    """For each target that is set, an SLO set with just that target."""
    return {
        target: SloSet.from_dict({f"{target}_seconds": seconds, "itl_percentile": slo.itl_percentile})
        for target in TARGETS
        if (seconds := slo.threshold(target)) is not None
    }
