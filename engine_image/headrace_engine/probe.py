"""The start-up probe: does this architecture really run on our attention, and does it compute the same?

Some architectures never call the attention interface, or hand it less than they mean; they would answer nonsense
without any error. So: learn each layer's KV shape from a first forward, then compare a chunked forward of two requests
in scattered blocks with the model's own eager attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from headrace_core.events import ScheduledSeq
from headrace_engine.attention import IMPLEMENTATION, paged_attention
from headrace_engine.errors import ModelError
from headrace_engine.kv_cache import LayerShape, make_pool
from headrace_engine.model import LoadedModel
from headrace_engine.runner import Runner

LENGTHS = (11, 7)
BLOCK = 4
# Relative to the spread of the reference logits. Wrong attention is off by far more.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}


@dataclass(slots=True)
class Calls:
    """What the attention interface was called with."""

    layers: list[int] = field(default_factory=list)
    shapes: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)


def probe(model: LoadedModel) -> dict[int, LayerShape]:
    """The KV shape of each layer. Raises `ModelError` naming the architecture where it cannot be served."""
    calls = _observe(model)
    _check_calls(model, calls)
    error = _largest_error(model, calls.shapes)
    if not error <= TOLERANCE[model.dtype]:
        raise ModelError(
            f"{model.architecture} computes something else on paged attention (error {error:.2g} of the logits' "
            f"spread, at most {TOLERANCE[model.dtype]:g} allowed), so headrace cannot serve it. Use another model, or "
            "report the architecture"
        )
    return calls.shapes


def _observe(model: LoadedModel) -> Calls:
    """One plain causal forward that notes each call and its shapes."""
    calls = Calls()

    def note(module: Any, query: Any, key: Any, value: Any, mask: Any, **given: Any) -> Any:
        index = module.layer_idx
        calls.layers.append(index)
        calls.shapes[index] = LayerShape(kv_heads=key.shape[1], key_dim=key.shape[3], value_dim=value.shape[3])
        calls.windows[index] = given.get("sliding_window")
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    with _attention(note), torch.inference_mode():
        try:
            ids, positions = _row(model, 0), torch.arange(LENGTHS[0], device=model.device)[None]
            model.module(input_ids=ids, position_ids=positions, use_cache=False, headrace_step=None)
        except (TypeError, KeyError, ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
            raise ModelError(
                f"{model.architecture} cannot run on headrace's attention: {error}. "
                "Use another model, or report the architecture"
            ) from error
    return calls


def _check_calls(model: LoadedModel, calls: Calls) -> None:
    if sorted(calls.layers) != list(range(model.num_layers)):
        raise ModelError(
            f"{model.architecture} bypasses transformers' attention interface ({len(calls.layers)} calls in "
            f"{model.num_layers} layers), so headrace cannot page its KV cache. Use another model"
        )
    types = getattr(model.module.config.get_text_config(), "layer_types", None) or []
    lost = [index for index, kind in enumerate(types) if kind == "sliding_attention" and calls.windows[index] is None]
    if lost:
        raise ModelError(
            f"{model.architecture} does not hand its sliding window to the attention interface (layer {lost[0]}), so "
            "headrace would attend too far. Use another model"
        )


def _largest_error(model: LoadedModel, shapes: dict[int, LayerShape]) -> float:
    """Of both requests' logits, chunked and interleaved on our attention, against eager; relative to their spread."""
    pool = make_pool(shapes, num_blocks=8, block_size=BLOCK, device=model.device, dtype=model.dtype)
    runner = Runner(model, pool)
    tables = ((5, 1, 3), (2, 6))
    steps = (
        (_part(model, 0, 0, 6, tables[0]), _part(model, 1, 0, 3, tables[1])),
        (_part(model, 1, 3, 4, tables[1]), _part(model, 0, 6, 10, tables[0])),
        (_part(model, 1, 4, 7, tables[1], samples=True), _part(model, 0, 10, 11, tables[0], samples=True)),
    )
    try:
        ours = [runner.logits(step) for step in steps][-1]
    except (TypeError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise ModelError(
            f"{model.architecture} cannot run on headrace's attention: {error}. "
            "Use another model, or report the architecture"
        ) from error
    plain = torch.stack([_plain_logits(model, 1), _plain_logits(model, 0)])
    return float((ours - plain).abs().max() / plain.std().clamp(min=1e-12))


def _plain_logits(model: LoadedModel, request: int) -> torch.Tensor:
    with _eager(model), torch.inference_mode():
        logits: torch.Tensor = model.module(input_ids=_row(model, request), use_cache=False).logits
    return logits[0, -1, : model.vocab_size]


def _part(
    model: LoadedModel, request: int, start: int, end: int, table: tuple[int, ...], *, samples: bool = False
) -> ScheduledSeq:
    ids = _row(model, request)[0, start:end].tolist()
    return ScheduledSeq(
        request_id=str(request), start=start, token_ids=tuple(ids), block_table=table, samples=samples, is_prefill=True
    )


def _row(model: LoadedModel, request: int) -> torch.Tensor:
    """Token ids of one made-up request, `[1, length]`."""
    steps = torch.arange(LENGTHS[request], device=model.device) + 1
    return (steps * (7919 + 104_729 * request) % model.vocab_size)[None]


@contextlib.contextmanager
def _attention(function: Any) -> Iterator[None]:
    AttentionInterface.register(IMPLEMENTATION, function)
    try:
        yield
    finally:
        AttentionInterface.register(IMPLEMENTATION, paged_attention)


@contextlib.contextmanager
def _eager(model: LoadedModel) -> Iterator[None]:
    model.module.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.module.set_attn_implementation(IMPLEMENTATION)
