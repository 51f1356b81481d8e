"""Paged attention behind transformers' AttentionInterface: write keys and values to their slots, then attend.

One row of tokens `[1, N]` holds every sequence of a step, decodes first. The step travels as the keyword argument
`headrace_step`. Decodes of like length are gathered together, with the query heads of one KV head packed as rows, so
KV is never repeated; a prefill chunk is one case with its history: tiles of queries over all keys up to their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from headrace_engine.kv_cache import GARBAGE_BLOCK, KvPool

IMPLEMENTATION = "headrace_paged"
TILE = 512  # queries attended at once: bounds the mask to TILE x context


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's rows in a step: `rows` tokens from position `start`, in the blocks of `table`."""

    start: int
    rows: int
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one row each and contexts of like length. `blocks` is flat, padded with block 0 to one width."""

    rows: torch.Tensor
    blocks: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries `lo .. hi` (rows of the step) of one sequence, the first at position `start`."""

    lo: int
    hi: int
    start: int

    @property
    def key_end(self) -> int:
        """Keys that the last query sees."""
        return self.start + self.hi - self.lo


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence with more than one row."""

    blocks: torch.Tensor
    tiles: tuple[Tile, ...]


@dataclass(slots=True)
class AttentionStep:
    """All that the attention function needs of a step. Masks and page indices are made once per step."""

    pool: KvPool
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    positions: torch.Tensor
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    masks: dict[tuple[str, int, int | None], torch.Tensor] = field(default_factory=dict)
    pages: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)


def make_step(spans: Sequence[Span], pool: KvPool) -> AttentionStep:
    """Lay out a step whose rows are `spans` one after another."""
    blocks: list[int] = []
    positions: list[int] = []
    chunks, decodes = [], []
    row = 0
    for span in spans:
        steps = range(span.start, span.start + span.rows)
        positions.extend(steps)
        blocks.extend(span.table[position // pool.block_size] for position in steps)
        if span.rows == 1:
            decodes.append((row, span))
        else:
            chunks.append(_chunk(span, row, pool))
        row += span.rows
    where = _indices(positions, pool)
    return AttentionStep(
        pool=pool,
        slot_blocks=_indices(blocks, pool),
        slot_offsets=where % pool.block_size,
        positions=where,
        groups=_decode_groups(decodes, pool),
        chunks=tuple(chunks),
    )


def _chunk(span: Span, row: int, pool: KvPool) -> Chunk:
    tiles = tuple(Tile(row + at, row + min(at + TILE, span.rows), span.start + at) for at in range(0, span.rows, TILE))
    return Chunk(_indices(span.table[: _width(span, pool)], pool), tiles)


def _decode_groups(decodes: Sequence[tuple[int, Span]], pool: KvPool) -> tuple[DecodeGroup, ...]:
    by_size: dict[int, list[tuple[int, Span]]] = {}
    for row, span in decodes:
        # Equal bit lengths differ by less than 2x, which bounds what padding costs.
        by_size.setdefault(_width(span, pool).bit_length(), []).append((row, span))
    return tuple(_decode_group(members, pool) for members in by_size.values())


def _decode_group(members: Sequence[tuple[int, Span]], pool: KvPool) -> DecodeGroup:
    width = max(_width(span, pool) for _, span in members)
    blocks: list[int] = []
    for _, span in members:
        own = span.table[: _width(span, pool)]
        blocks.extend(own)
        blocks.extend([GARBAGE_BLOCK] * (width - len(own)))
    return DecodeGroup(
        rows=_indices([row for row, _ in members], pool),
        blocks=_indices(blocks, pool),
        lengths=_indices([span.start + 1 for _, span in members], pool),
    )


def _width(span: Span, pool: KvPool) -> int:
    return -(-(span.start + span.rows) // pool.block_size)


def _indices(values: Sequence[int], pool: KvPool) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=pool.device)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a layer asks of its attention beyond causality."""

    scaling: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # [query heads]


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
    keys, values = step.pool.keys[module.layer_idx], step.pool.values[module.layer_idx]
    # Slots first: then a chunk and its history are one case.
    keys[step.slot_blocks, :, step.slot_offsets] = key[0].transpose(0, 1)
    values[step.slot_blocks, :, step.slot_offsets] = value[0].transpose(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    rules = Rules(scale, sliding_window, softcap, s_aux)
    out = query.new_empty(query.shape[2], query.shape[1], values.shape[-1])
    for group in step.groups:
        out[group.rows] = _decode(query[0], (keys, values), step, group=group, rules=rules)
    for chunk in step.chunks:
        _prefill(out, query[0], (keys, values), step=step, chunk=chunk, rules=rules)
    return out.unsqueeze(0), None


def _gather(pool: torch.Tensor, blocks: torch.Tensor, step: AttentionStep) -> torch.Tensor:
    """`[Hkv, len(blocks) * block size, D]`, contiguous, in one copy of whole (block, head) pages."""
    num_blocks, kv_heads, block_size, dim = pool.shape
    name = (id(blocks), kv_heads)
    pages = step.pages.get(name)
    if pages is None:
        heads = torch.arange(kv_heads, device=blocks.device)[:, None]
        pages = step.pages[name] = (blocks * kv_heads + heads).flatten()
    return pool.view(num_blocks * kv_heads, block_size, dim).index_select(0, pages).view(kv_heads, -1, dim)


def _decode(
    query: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    step: AttentionStep,
    *,
    group: DecodeGroup,
    rules: Rules,
) -> torch.Tensor:
    keys, values = pools
    heads, _, dim = query.shape
    kv_heads, members = keys.shape[1], len(group.rows)
    k = _gather(keys, group.blocks, step).view(kv_heads, members, -1, dim)
    v = _gather(values, group.blocks, step).view(kv_heads, members, -1, values.shape[-1])
    # Query heads of one KV head become the rows of one small attention: [Hkv, members, heads per KV head, D].
    q = query[:, group.rows].view(kv_heads, heads // kv_heads, members, dim).transpose(1, 2)
    name = ("decode", id(group), rules.window)
    mask = step.masks.get(name)
    if mask is None:
        mask = step.masks[name] = _decode_mask(group.lengths, k.shape[2], rules.window, query.dtype)
    sinks = None if rules.sinks is None else rules.sinks.view(kv_heads, 1, -1, 1)
    out = _attend(q, k, v, mask=mask, rules=rules, sinks=sinks)
    return out.permute(1, 0, 2, 3).reshape(members, heads, -1)


def _decode_mask(lengths: torch.Tensor, width: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Additive, `[1, members, 1, width]`."""
    at = torch.arange(width, device=lengths.device)
    allowed = at < lengths[:, None]
    if window is not None:
        allowed &= at >= lengths[:, None] - window
    return _additive(allowed, dtype)[None, :, None]


def _prefill(
    out: torch.Tensor,
    query: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    *,
    step: AttentionStep,
    chunk: Chunk,
    rules: Rules,
) -> None:
    keys, values = pools
    heads, rows, dim = query.shape
    kv_heads = keys.shape[1]
    per_head = heads // kv_heads
    k, v = _gather(keys, chunk.blocks, step), _gather(values, chunk.blocks, step)
    q = query.view(kv_heads, per_head, rows, dim)
    sinks = None if rules.sinks is None else rules.sinks.view(kv_heads, per_head, 1, 1)
    for tile in chunk.tiles:
        name = ("chunk", tile.lo, rules.window)
        mask = step.masks.get(name)
        if mask is None:
            mask = step.masks[name] = _chunk_mask(tile, rules.window, query)
        # Strides of 0 instead of copies: every query head of a group sees the same keys.
        shared_k = k[:, None, : tile.key_end].expand(-1, per_head, -1, -1)
        shared_v = v[:, None, : tile.key_end].expand(-1, per_head, -1, -1)
        part = _attend(q[:, :, tile.lo : tile.hi], shared_k, shared_v, mask=mask, rules=rules, sinks=sinks)
        out[tile.lo : tile.hi] = part.flatten(0, 1).transpose(0, 1)


def _chunk_mask(tile: Tile, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Additive, `[1, 1, queries, keys]`."""
    at = torch.arange(tile.key_end, device=like.device)
    of = torch.arange(tile.start, tile.key_end, device=like.device)[:, None]
    allowed = at <= of
    if window is not None:
        allowed &= at > of - window
    return _additive(allowed, like.dtype)[None, None]


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # SDPA turns a boolean mask into this in every call; once per step is enough.
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor, rules: Rules, sinks: torch.Tensor | None
) -> torch.Tensor:
    if rules.softcap is None and sinks is None and q.shape[-1] == v.shape[-1]:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rules.scaling)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * rules.scaling
    if rules.softcap is not None:
        scores = torch.tanh(scores / rules.softcap) * rules.softcap
    scores = scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        # A sink joins the denominator and then is dropped.
        column = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    return torch.matmul(weights.to(v.dtype), v)


def register() -> None:
    """Make `IMPLEMENTATION` known to transformers. Idempotent."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


register()
