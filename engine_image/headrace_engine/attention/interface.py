"""The hook into transformers' AttentionInterface: passes a layer's parameters and tensors to the chosen backend.

One row of tokens `[1, N]` holds all sequences of a step. The step, as the backend prepared it, is passed through the
model as the keyword argument `headrace_step`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from headrace_engine.attention.base import AttentionLayer, PreparedStep

IMPLEMENTATION = "headrace_paged"


def paged_attention(  # the signature is transformers'
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    headrace_step: PreparedStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """`query [1, Hq, N, D]`, `key`/`value [1, Hkv, N, D]` after RoPE -> `[1, N, Hq, Dv]`."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = AttentionLayer(module.layer_idx, scale, sliding_window, softcap, s_aux)
    return headrace_step.forward(layer, query[0], key[0], value[0]).unsqueeze(0), None


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers. Idempotent."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


register()
