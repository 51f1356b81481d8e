"""The SDPA backend: torch's own operators over gathered blocks, on any device. The reference for all others.

Decodes of similar length are gathered together, with the query heads of one KV head packed as rows, so KV is never
repeated. A prefill chunk is attended together with its history, in tiles of queries over all keys up to their own; a
chunk without history reads its own rows instead of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from headrace_engine.attention.base import AttentionBackend, AttentionLayer, AttentionStep
from headrace_engine.attention.features import ANYTHING, BackendAbilities, Feature
from headrace_engine.attention.kv_cache import KvPool
from headrace_engine.attention.tiles import ChunkRows, DecodeGroup, GatheredBlocks, Layout, make_layout

SCORES_TILE = 128  # queries at once if all scores are in memory: limits them to heads x SCORES_TILE x context


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One layer's call. `query [Hq, N, D]`; `own`: this step's keys and values `[Hkv, N, D]`, rounded like the pool."""

    query: torch.Tensor
    own: tuple[torch.Tensor, torch.Tensor]
    pools: tuple[torch.Tensor, torch.Tensor]
    layer: AttentionLayer

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.pools[0].shape[1]

    @property
    def per_head(self) -> int:
        """Number of query heads that share one KV head."""
        return self.query.shape[0] // self.kv_heads

    @property
    def is_fused(self) -> bool:
        """Whether torch's fused kernel can compute it: no soft cap, no sinks, keys and values of one head size."""
        plain = self.layer.softcap is None and self.layer.sinks is None
        return plain and self.query.shape[-1] == self.pools[1].shape[-1]

    def sinks(self, *shape: int) -> torch.Tensor | None:
        """The sinks in fp32, viewed as `shape`; None if the layer has none."""
        return None if self.layer.sinks is None else self.layer.sinks.float().view(shape)


class SdpaStep:
    """A step and the data its layers share: where rows go in the pool, and a layout for each sliding window."""

    def __init__(self, step: AttentionStep, pool: KvPool) -> None:
        self._step = step
        self._pool = pool
        self._slot_blocks = step.slots // step.block_size
        self._slot_offsets = step.slots % step.block_size
        self._layouts: dict[int | None, Layout] = {}

    def layout(self, window: int | None, dtype: torch.dtype) -> Layout:
        """The step as layers with this window see it; `dtype` is that of the queries."""
        found = self._layouts.get(window)
        if found is None:
            found = self._layouts[window] = make_layout(self._step, window, dtype)
        return found

    def forward(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `PreparedStep`."""
        pools = self._pool.keys[layer.index], self._pool.values[layer.index]
        # Written to the pool first, so that a chunk and its history are read the same way.
        stored = k.to(pools[0].dtype), v.to(pools[1].dtype)
        for pool, rows in zip(pools, stored, strict=True):
            pool[self._slot_blocks, :, self._slot_offsets] = rows.transpose(0, 1)
        # Rounded as in the pool, so that chunk borders do not affect the result.
        call = LayerCall(q, (stored[0].to(q.dtype), stored[1].to(q.dtype)), pools, layer)
        layout = self.layout(layer.window, q.dtype)
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[-1])
        for group in layout.groups:
            out[group.rows] = _decode(call, group)
        for chunk in layout.chunks:
            _prefill(out, call, chunk=chunk, layout=layout)
        return out


class SdpaBackend(AttentionBackend):
    """Supports every feature on every device, at the cost of copying the keys and values that a step reads."""

    name = "sdpa"
    abilities = BackendAbilities(
        devices=ANYTHING, dtypes=ANYTHING, head_sizes=ANYTHING, block_sizes=ANYTHING, features=frozenset(Feature)
    )

    def prepare(self, step: AttentionStep, pool: KvPool) -> SdpaStep:
        """See `AttentionBackend`."""
        return SdpaStep(step, pool)


def _gather(call: LayerCall, blocks: GatheredBlocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[Hkv, blocks * block size, D]`, each in one copy of whole (block, head) pages."""
    pages = blocks.pages(call.kv_heads)
    keys, values = (
        pool.view(-1, *pool.shape[2:]).index_select(0, pages).view(call.kv_heads, -1, pool.shape[3])
        for pool in call.pools
    )
    return keys.to(call.query.dtype), values.to(call.query.dtype)


def _decode(call: LayerCall, group: DecodeGroup) -> torch.Tensor:
    kv_heads, per_head, members = call.kv_heads, call.per_head, group.members
    k, v = (part.view(kv_heads, members, -1, part.shape[-1]) for part in _gather(call, group.blocks))
    # Query heads of one KV head become the rows of one small attention: [Hkv, members, heads per KV head, D].
    q = call.query[:, group.rows].view(kv_heads, per_head, members, -1).transpose(1, 2)
    if call.is_fused:
        out = scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=call.layer.scale)
    else:
        weights = _weights(_scores(q, k, call.layer), group.mask, call.sinks(kv_heads, 1, -1, 1))
        out = torch.matmul(weights, v.float()).to(v.dtype)
    return out.permute(1, 0, 2, 3).reshape(members, kv_heads * per_head, -1)


def _prefill(out: torch.Tensor, call: LayerCall, *, chunk: ChunkRows, layout: Layout) -> None:
    if chunk.blocks is None:
        k, v = (part[:, chunk.lo : chunk.hi] for part in call.own)
    else:
        k, v = _gather(call, chunk.blocks)
    if chunk.is_square and call.is_fused:
        # One call without a mask: its kernel never holds all scores in memory, so no tiles are needed.
        out[chunk.lo : chunk.hi] = _fused(call, slice(chunk.lo, chunk.hi), k, v=v, mask=None)
        return
    attend = _fused if call.is_fused else _formed
    for tile in chunk.tiles:
        keys = slice(tile.key_lo, tile.key_hi)
        mask = layout.mask(tile, call.query)
        out[tile.lo : tile.hi] = attend(call, slice(tile.lo, tile.hi), k[:, keys], v=v[:, keys], mask=mask)


def _fused(
    call: LayerCall, rows: slice, k: torch.Tensor, *, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention of queries `rows` over `k`, `v` `[Hkv, keys, D]`, as `[rows, Hq, Dv]`; causal if there is no mask."""
    q = call.query[:, rows].view(call.kv_heads, call.per_head, -1, call.query.shape[-1])
    # Expanded with strides of 0, not copied: every query head of a group sees the same keys.
    shared_k, shared_v = (part[:, None].expand(-1, call.per_head, -1, -1) for part in (k, v))
    out = scaled_dot_product_attention(
        q, shared_k, shared_v, attn_mask=mask, is_causal=mask is None, scale=call.layer.scale
    )
    return out.flatten(0, 1).transpose(0, 1)


def _formed(call: LayerCall, rows: slice, k: torch.Tensor, *, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As `_fused`, but with all scores in memory, because a cap or a sink changes them: a few rows at a time."""
    k, v = k.float(), v.float()
    sinks = call.sinks(call.kv_heads, -1, 1, 1)
    parts = []
    for lo in range(rows.start, rows.stop, SCORES_TILE):
        hi = min(lo + SCORES_TILE, rows.stop)
        seen = k.shape[1] - (rows.stop - hi)
        # The group's heads become rows: KV is neither repeated nor copied.
        q = call.query[:, lo:hi].reshape(call.kv_heads, -1, call.query.shape[-1])
        scores = _scores(q, k[:, :seen], call.layer).view(call.kv_heads, call.per_head, hi - lo, seen)
        weights = _weights(scores, mask[lo - rows.start : hi - rows.start, :seen], sinks)
        part = torch.matmul(weights.reshape(call.kv_heads, -1, seen), v[:, :seen])
        parts.append(part.view(call.query.shape[0], hi - lo, -1).transpose(0, 1))
    return torch.cat(parts)


def _scores(q: torch.Tensor, k: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """Scaled, capped scores in fp32: bf16 would round a score of 100 to a multiple of 0.5."""
    scores = torch.matmul(q.float(), k.transpose(-1, -2).float()).mul_(layer.scale)
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    return scores


def _weights(scores: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    scores += mask
    if sinks is None:
        return scores.softmax(-1)
    # A sink counts in the denominator only: its column is dropped afterwards.
    column = sinks.expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
