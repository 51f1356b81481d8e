"""The cost of steps: predicted against measured time, and the share of the device's peaks that they used."""

from __future__ import annotations

import math

from headrace_core import metric_names as names
from headrace_core.scheduler.events import StepPlan
from headrace_core.sim.roofline import ModelShape, Peaks, StepCost, step_cost, step_shapes
from headrace_core.sim.step_time import StepShape, StepTimeModel
from headrace_engine.metrics.decision_series import DecisionSeries
from headrace_engine.metrics.series import SeriesTable

RECENT_SECONDS = 10.0  # of busy time, after which a step's weight in the utilisation gauges has fallen to 1/e


class StepMetrics:
    """Written by the step thread, under the table's lock."""

    def __init__(self, table: SeriesTable, model_name: str, cost_model: StepTimeModel) -> None:
        self.cost_model = cost_model
        self._shape: ModelShape | None = None
        self._peaks = Peaks()
        self._recent = StepCost(0.0, 0.0, 0.0)
        self._recent_seconds = 0.0
        vllm = (model_name, names.VLLM_ENGINE)
        self._iteration = table.histogram(names.VLLM_ITERATION_TOKENS, *vllm, bounds=names.ITERATION_BUCKETS)
        self._flops = table.value(names.VLLM_FLOPS, *vllm)
        self._read = table.value(names.VLLM_READ_BYTES, *vllm)
        self._written = table.value(names.VLLM_WRITE_BYTES, *vllm)
        self._terms = {term: table.value(names.STEP_MODEL, model_name, term) for term in names.MODEL_TERMS}
        self._residuals = {kind: table.value(names.STEP_RESIDUAL, model_name, kind) for kind in ("bias", "error")}
        self._mfu, self._mbu = table.value(names.MFU, model_name), table.value(names.MBU, model_name)
        self._peak_flops = table.value(names.PEAK_FLOPS, model_name)
        self._peak_bytes = table.value(names.PEAK_BYTES, model_name)

    def set_model(self, shape: ModelShape, peaks: Peaks) -> None:
        """The model's shape and the device's peaks, from which utilisation is computed."""
        self._shape, self._peaks = shape, peaks
        self._peak_flops.value, self._peak_bytes.value = peaks.flops, peaks.read_bytes

    def observe(self, series: DecisionSeries, plan: StepPlan, seconds: float) -> None:
        """A step succeeded after so many seconds: count its tokens, compare with the model, add to utilisation."""
        shape = StepShape.of(plan.seqs)
        self._count(series, shape)
        self._compare(series, shape, seconds)
        if self._shape is not None:
            self._utilise(series, plan, shape, seconds)

    def publish(self) -> None:
        """Set the gauges, which are not kept up to date between scrapes."""
        for term, value in self.cost_model.coefficients.items():
            self._terms[term].value = value
        self._residuals["bias"].value, self._residuals["error"].value = self.cost_model.bias, self.cost_model.error
        self._mfu.value = self._recent.mfu(self._recent_seconds, self._peaks)
        self._mbu.value = self._recent.mbu(self._recent_seconds, self._peaks)

    def _count(self, series: DecisionSeries, shape: StepShape) -> None:
        decode_rows = shape.rows - shape.prefill_rows
        if shape.prefill_rows:
            series.observe(names.STEP_TOKENS, shape.prefill_rows, "prefill")
        if decode_rows:
            series.observe(names.STEP_TOKENS, decode_rows, "decode")
        self._iteration.observe(shape.prefill_rows + shape.sampled)

    def _compare(self, series: DecisionSeries, shape: StepShape, seconds: float) -> None:
        if self.cost_model.ready and seconds > 0:
            predicted = self.cost_model.predict(shape)
            series.add(names.STEP_PREDICTED, predicted)
            series.add(names.STEP_MODELLED, seconds)
            series.observe(names.STEP_ERROR, abs(predicted - seconds) / seconds)
        self.cost_model.observe(shape, seconds)

    def _utilise(self, series: DecisionSeries, plan: StepPlan, shape: StepShape, seconds: float) -> None:
        assert self._shape is not None  # noqa: S101  (for the type checker)
        cost = step_cost(self._shape, step_shapes(self._shape, plan.seqs, shape))
        series.add(names.FLOPS, cost.flops)
        series.add(names.MEMORY_BYTES, cost.read_bytes, "read")
        series.add(names.MEMORY_BYTES, cost.write_bytes, "write")
        self._flops.value += cost.flops
        self._read.value += cost.read_bytes
        self._written.value += cost.write_bytes
        fade = math.exp(-seconds / RECENT_SECONDS)
        self._recent = StepCost(
            self._recent.flops * fade + cost.flops,
            self._recent.read_bytes * fade + cost.read_bytes,
            self._recent.write_bytes * fade + cost.write_bytes,
        )
        self._recent_seconds = self._recent_seconds * fade + seconds
