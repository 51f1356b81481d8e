"""The shape of a loaded model for `headrace_core.sim.roofline`: parameters, weight bytes, attention layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from headrace_core.sim.roofline import AttentionLayers, Experts, ModelShape
from headrace_engine.attention.kv_cache import LayerShape
from headrace_engine.model.loading import LoadedModel

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE_COUNTS = ("num_experts_per_tok", "experts_per_token", "top_k_experts")


def model_shape(
    model: LoadedModel, layers: Mapping[int, LayerShape], *, kv_dtype: torch.dtype | None = None
) -> ModelShape:
    """The shape of `model` with the KV layers that the probe found. `kv_dtype` defaults to the model's dtype."""
    config = model.module.config.get_text_config()
    named = dict(model.module.named_parameters())
    head, embedding = model.module.get_output_embeddings(), model.module.get_input_embeddings()
    outside = {id(part.weight) for part in (head, embedding) if part is not None}
    inner = {name: value for name, value in named.items() if id(value) not in outside}
    experts = {name: value for name, value in inner.items() if ".experts." in name}
    dense = [value for name, value in inner.items() if name not in experts]
    head_weight = None if head is None else head.weight
    return ModelShape(
        layer_params=_matrix_params(dense),
        head_params=0 if head_weight is None else head_weight.numel(),
        weight_bytes=_bytes(dense) + (0 if head_weight is None else _bytes([head_weight])),
        kv_element_bytes=(kv_dtype or model.dtype).itemsize,
        attention=_attention(config, layers),
        experts=_experts(config, list(experts.values())),
    )


def _experts(config: Any, weights: list[Any]) -> Experts | None:
    count = next((int(value) for name in _EXPERT_COUNTS if (value := getattr(config, name, None))), 0)
    active = next((int(value) for name in _ACTIVE_COUNTS if (value := getattr(config, name, None))), 1)
    if not weights or not count:
        return None
    return Experts(count=count, active=min(active, count), params=_matrix_params(weights), weight_bytes=_bytes(weights))


def _attention(config: Any, layers: Mapping[int, LayerShape]) -> tuple[AttentionLayers, ...]:
    kinds = Counter((layer, _window(config, index)) for index, layer in sorted(layers.items()))
    return tuple(
        AttentionLayers(
            layers=count, query_heads=int(config.num_attention_heads), kv_heads=layer.kv_heads, key_dim=layer.key_dim,
            value_dim=layer.value_dim, window=window,
        )
        for (layer, window), count in kinds.items()
    )  # fmt: skip


def _window(config: Any, index: int) -> int | None:
    window = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", True) is False:
        return None
    types = getattr(config, "layer_types", None)
    return int(window) if not types or types[index] == "sliding_attention" else None


def _matrix_params(weights: Iterable[Any]) -> int:
    return sum(weight.numel() for weight in weights if weight.dim() > 1)


def _bytes(weights: Iterable[Any]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)
