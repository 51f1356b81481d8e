"""Paged attention behind transformers' AttentionInterface: write keys and values to their slots, then attend.

One row of tokens `[1, N]` holds every sequence of a step, decodes first. The step travels as the keyword argument
`headrace_step`. Decodes of like length are gathered together, with the query heads of one KV head packed as rows, so
KV is never repeated. A prefill chunk is one case with its history: tiles of queries over all keys up to their own; a
chunk that has no history reads its own rows instead of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from headrace_engine.attention.tiles import (
    AttentionStep,
    ChunkRows,
    DecodeGroup,
    Layout,
)

IMPLEMENTATION = "headrace_paged"
SCORES_TILE = 128  # queries at once where scores are held in full: bounds them to heads x SCORES_TILE x context


@dataclass(frozen=True, slots=True)
class LayerRules:
    """What a layer asks of its attention beyond causality and its window."""

    scaling: float
    softcap: float | None
    sinks: torch.Tensor | None  # [query heads]


@dataclass(frozen=True, slots=True)
class Layer:
    """One call. `query [Hq, N, D]`; `own` are this step's keys and values `[Hkv, N, D]` as the pool keeps them."""

    query: torch.Tensor
    own: tuple[torch.Tensor, torch.Tensor]
    pools: tuple[torch.Tensor, torch.Tensor]
    rules: LayerRules
    step: AttentionStep

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return self.pools[0].shape[1]

    @property
    def per_head(self) -> int:
        """Query heads that share one KV head."""
        return self.query.shape[0] // self.kv_heads

    @property
    def is_fused(self) -> bool:
        """Whether torch's own kernel computes it."""
        plain = self.rules.softcap is None and self.rules.sinks is None
        return plain and self.query.shape[-1] == self.pools[1].shape[-1]

    def sinks(self, *shape: int) -> torch.Tensor | None:
        """The sinks in fp32, by KV head and head within it."""
        return None if self.rules.sinks is None else self.rules.sinks.float().view(shape)


def paged_attention(  # the signature is transformers'
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    headrace_step: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """`query [1, Hq, N, D]`, `key`/`value [1, Hkv, N, D]` after RoPE -> `[1, N, Hq, Dv]`."""
    step = headrace_step
    pools = step.pool.keys[module.layer_idx], step.pool.values[module.layer_idx]
    # Slots first: then a chunk and its history are one case.
    stored = key[0].to(pools[0].dtype), value[0].to(pools[1].dtype)
    for pool, rows in zip(pools, stored, strict=True):
        pool[step.slot_blocks, :, step.slot_offsets] = rows.transpose(0, 1)
    # Rounded as the pool rounds, so that where chunks begin changes nothing.
    own = stored[0].to(query.dtype), stored[1].to(query.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = Layer(query[0], own, pools, LayerRules(scale, softcap, s_aux), step)
    layout = step.layout(sliding_window, query.dtype)
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    for group in layout.groups:
        out[group.rows] = _decode(layer, group)
    for chunk in layout.chunks:
        _prefill(out, layer, chunk=chunk, layout=layout)
    return out.unsqueeze(0), None


def _gather(layer: Layer, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[Hkv, len(blocks) * block size, D]`, each in one copy of whole (block, head) pages."""
    step, kv_heads = layer.step, layer.kv_heads
    name = (id(blocks), kv_heads)
    pages = step.pages.get(name)
    if pages is None:
        heads = torch.arange(kv_heads, device=blocks.device)[:, None]
        pages = step.pages[name] = (blocks * kv_heads + heads).flatten()
    keys, values = (
        pool.view(-1, *pool.shape[2:]).index_select(0, pages).view(kv_heads, -1, pool.shape[3]) for pool in layer.pools
    )
    return keys.to(layer.query.dtype), values.to(layer.query.dtype)


def _decode(layer: Layer, group: DecodeGroup) -> torch.Tensor:
    kv_heads, per_head, members = layer.kv_heads, layer.per_head, len(group.rows)
    k, v = (part.view(kv_heads, members, -1, part.shape[-1]) for part in _gather(layer, group.blocks))
    # Query heads of one KV head become the rows of one small attention: [Hkv, members, heads per KV head, D].
    q = layer.query[:, group.rows].view(kv_heads, per_head, members, -1).transpose(1, 2)
    if layer.is_fused:
        out = scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=layer.rules.scaling)
    else:
        weights = _weights(_scores(q, k, layer.rules), group.mask, layer.sinks(kv_heads, 1, -1, 1))
        out = torch.matmul(weights, v.float()).to(v.dtype)
    return out.permute(1, 0, 2, 3).reshape(members, kv_heads * per_head, -1)


def _prefill(out: torch.Tensor, layer: Layer, *, chunk: ChunkRows, layout: Layout) -> None:
    if chunk.blocks is None:
        k, v = (part[:, chunk.lo : chunk.hi] for part in layer.own)
    else:
        k, v = _gather(layer, chunk.blocks)
    if chunk.is_square and layer.is_fused:
        # One call without any mask: its kernel never holds all scores, so it needs no tiles.
        out[chunk.lo : chunk.hi] = _fused(layer, slice(chunk.lo, chunk.hi), k, v=v, mask=None)
        return
    attend = _fused if layer.is_fused else _formed
    for tile in chunk.tiles:
        keys = slice(tile.key_lo, tile.key_hi)
        mask = layout.mask(tile, layer.query)
        out[tile.lo : tile.hi] = attend(layer, slice(tile.lo, tile.hi), k[:, keys], v=v[:, keys], mask=mask)


def _fused(layer: Layer, rows: slice, k: torch.Tensor, *, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """`[rows, Hq, Dv]` of queries `rows` over `k`, `v` `[Hkv, keys, D]`; without a mask, causally."""
    q = layer.query[:, rows].view(layer.kv_heads, layer.per_head, -1, layer.query.shape[-1])
    # Strides of 0 instead of copies: every query head of a group sees the same keys.
    shared_k, shared_v = (part[:, None].expand(-1, layer.per_head, -1, -1) for part in (k, v))
    out = scaled_dot_product_attention(
        q, shared_k, shared_v, attn_mask=mask, is_causal=mask is None, scale=layer.rules.scaling
    )
    return out.flatten(0, 1).transpose(0, 1)


def _formed(layer: Layer, rows: slice, k: torch.Tensor, *, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same where the scores must be held in full, because a cap or a sink changes them: a few rows at a time."""
    k, v = k.float(), v.float()
    sinks = layer.sinks(layer.kv_heads, -1, 1, 1)
    parts = []
    for lo in range(rows.start, rows.stop, SCORES_TILE):
        hi = min(lo + SCORES_TILE, rows.stop)
        seen = k.shape[1] - (rows.stop - hi)
        # The group's heads become rows: KV is neither repeated nor copied.
        q = layer.query[:, lo:hi].reshape(layer.kv_heads, -1, layer.query.shape[-1])
        scores = _scores(q, k[:, :seen], layer.rules).view(layer.kv_heads, layer.per_head, hi - lo, seen)
        weights = _weights(scores, mask[lo - rows.start : hi - rows.start, :seen], sinks)
        part = torch.matmul(weights.reshape(layer.kv_heads, -1, seen), v[:, :seen])
        parts.append(part.view(layer.query.shape[0], hi - lo, -1).transpose(0, 1))
    return torch.cat(parts)


def _scores(q: torch.Tensor, k: torch.Tensor, rules: LayerRules) -> torch.Tensor:
    """In fp32: bf16 would round a score of 100 to halves before the cap or the exponential sees it."""
    scores = torch.matmul(q.float(), k.transpose(-1, -2).float()).mul_(rules.scaling)
    if rules.softcap is not None:
        scores.div_(rules.softcap).tanh_().mul_(rules.softcap)
    return scores


def _weights(scores: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    scores += mask
    if sinks is None:
        return scores.softmax(-1)
    # A sink joins the denominator and then is dropped.
    column = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers. Idempotent."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


register()
