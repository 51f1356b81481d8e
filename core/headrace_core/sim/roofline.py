"""The least that a step must compute and move, from a model's shape, and its share of a machine's peaks. Pure.

    gemm flops = 2 * params * rows + 2 * head_params * sampled
    attention  = 2 * query heads * (key dim + value dim) * (decode keys + prefill pairs), for each layer
    bytes read = weights touched + KV of every key looked at;  bytes written = KV of every row

Estimates: activations, norms, sampling and what a kernel reads twice are left out, so true traffic is a little higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.sim.step_time import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Layers of one kind. `window` is how many tokens they see, None for all."""

    layers: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of all layers together: `active` of `count` in each layer serve a token."""

    count: int
    active: int
    params: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The parts of a model's shape that decide the cost of a step.

    `layer_params` are the weights of matrix products in the layers, `head_params` those of the LM head;
    `weight_bytes` are read in every step, the experts' apart. The input embedding is in none of them.
    """

    layer_params: int
    head_params: int
    weight_bytes: int
    kv_element_bytes: int
    attention: tuple[AttentionLayers, ...]
    experts: Experts | None = None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows of its layers."""
        return tuple(dict.fromkeys(kind.window for kind in self.attention))


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of a device: operations and bytes read, each per second; 0 if unknown."""

    flops: float = 0.0
    read_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of one step: floating-point operations, bytes read, bytes written."""

    flops: float
    read_bytes: float
    write_bytes: float

    def mfu(self, seconds: float, peaks: Peaks) -> float:
        """Model FLOPs utilisation, 0 to about 1; 0 where the peak or the duration is 0."""
        possible = seconds * peaks.flops
        return self.flops / possible if possible > 0 else 0.0

    def mbu(self, seconds: float, peaks: Peaks) -> float:
        """Memory bandwidth utilisation, 0 to about 1; 0 where the peak or the duration is 0."""
        possible = seconds * peaks.read_bytes
        return (self.read_bytes + self.write_bytes) / possible if possible > 0 else 0.0


def step_shapes(model: ModelShape, seqs: Sequence[ScheduledSeq], whole: StepShape) -> dict[int | None, StepShape]:
    """The shape of a step as the layers with each window see it; `whole` as those see it that have none."""
    return {window: whole if window is None else StepShape.of(seqs, window=window) for window in model.windows}


def step_cost(model: ModelShape, shapes: Mapping[int | None, StepShape]) -> StepCost:
    """The cost of a step. `shapes` has one for each of `model.windows`."""
    any_shape = next(iter(shapes.values()))
    rows, sampled = any_shape.rows, any_shape.sampled
    flops = 2.0 * (_active_params(model) * rows + model.head_params * sampled)
    read = _weight_bytes(model, rows) if rows else 0.0
    written = 0.0
    for kind in model.attention:
        shape = shapes[kind.window]
        dims = kind.key_dim + kind.value_dim
        flops += 2.0 * kind.layers * kind.query_heads * dims * (shape.decode_keys + shape.prefill_pairs)
        token_bytes = kind.layers * kind.kv_heads * dims * model.kv_element_bytes
        read += token_bytes * (shape.decode_keys + shape.prefill_keys)
        written += token_bytes * rows
    return StepCost(flops, read, written)


def _active_params(model: ModelShape) -> float:
    if model.experts is None:
        return model.layer_params
    return model.layer_params + model.experts.params * model.experts.active / model.experts.count


def _weight_bytes(model: ModelShape, rows: int) -> float:
    """Bytes of the weights that a step of `rows` tokens touches, with experts chosen evenly."""
    if model.experts is None:
        return float(model.weight_bytes)
    idle = (1.0 - model.experts.active / model.experts.count) ** rows
    return model.weight_bytes + model.experts.weight_bytes * (1.0 - idle)
