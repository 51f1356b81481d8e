"""How the attention sees a step: which rows are decodes and which are chunks, the blocks to gather, the masks.

Layers share it: a layout is made once per step and sliding window. Only blocks that hold a key some row of a sequence
can see are gathered, so a window bounds what a long context costs; no mask spans two sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headrace_engine.attention.kv_cache import GARBAGE_BLOCK, KvPool

TILE = 512  # queries attended at once: bounds the mask to TILE x context


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence's rows in a step: `rows` tokens from position `start`, in the blocks of `table`."""

    start: int
    rows: int
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one row each and contexts of like length. `blocks` is flat, padded with block 0 to one width."""

    rows: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor  # additive, [1, members, 1, keys]


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries `lo .. hi` (rows of the step) of one sequence over keys `key_lo .. key_hi` of its chunk.

    `back` is how many of these keys precede the first query.
    """

    lo: int
    hi: int
    key_lo: int
    key_hi: int
    back: int


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """A sequence with more than one row. `blocks` is None where its own rows are all the keys it needs."""

    lo: int
    hi: int
    blocks: torch.Tensor | None
    tiles: tuple[Tile, ...]
    is_square: bool  # every query sees exactly the rows up to its own


@dataclass(slots=True)
class Layout:
    """A step as layers with one sliding window see it. The mask is made when a chunk first needs one."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkRows, ...]
    window: int | None
    band: torch.Tensor | None = None

    def mask(self, tile: Tile, like: torch.Tensor) -> torch.Tensor:
        """Additive, `[queries, keys]`. What a query sees depends on distance alone: all tiles are cuts of one band."""
        if self.band is None:
            tiles = [tile for chunk in self.chunks for tile in chunk.tiles]
            self.band = _band(
                max(tile.hi - tile.lo for tile in tiles), max(tile.back for tile in tiles), self.window, like
            )
        rows = tile.hi - tile.lo
        middle = self.band.shape[1] - self.band.shape[0]
        return self.band[:rows, middle - tile.back : middle + rows]


@dataclass(slots=True)
class AttentionStep:
    """All that the attention function needs of a step. Layouts and page indices are made once per step."""

    pool: KvPool
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    positions: torch.Tensor
    decodes: tuple[tuple[int, SequenceRows], ...]  # first row of the step, span
    prefills: tuple[tuple[int, SequenceRows], ...]
    layouts: dict[int | None, Layout] = field(default_factory=dict)
    pages: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def layout(self, window: int | None, dtype: torch.dtype) -> Layout:
        """The step for layers with this window; `dtype` is that of the queries."""
        found = self.layouts.get(window)
        if found is None:
            groups = _decode_groups(self.decodes, self.pool, window=window, dtype=dtype)
            chunks = tuple(_chunk(span, row, self.pool, window=window) for row, span in self.prefills)
            found = self.layouts[window] = Layout(groups, chunks, window)
        return found


def make_step(spans: Sequence[SequenceRows], pool: KvPool) -> AttentionStep:
    """Lay out a step whose rows are `spans` one after another."""
    blocks: list[int] = []
    positions: list[int] = []
    decodes: list[tuple[int, SequenceRows]] = []
    prefills: list[tuple[int, SequenceRows]] = []
    row = 0
    for span in spans:
        steps = range(span.start, span.start + span.rows)
        positions.extend(steps)
        blocks.extend(span.table[position // pool.block_size] for position in steps)
        (decodes if span.rows == 1 else prefills).append((row, span))
        row += span.rows
    where = _indices(positions, pool)
    return AttentionStep(
        pool=pool,
        slot_blocks=_indices(blocks, pool),
        slot_offsets=where % pool.block_size,
        positions=where,
        decodes=tuple(decodes),
        prefills=tuple(prefills),
    )


def _chunk(span: SequenceRows, row: int, pool: KvPool, *, window: int | None) -> ChunkRows:
    low, high = _needed_blocks(span, pool, window)
    origin = 0 if span.start == 0 else low * pool.block_size  # position of the first key
    tiles = []
    for at in range(0, span.rows, TILE):
        rows = min(TILE, span.rows - at)
        start = span.start + at
        first = origin if window is None else max(origin, start - window + 1)
        tiles.append(Tile(row + at, row + at + rows, first - origin, start + rows - origin, start - first))
    return ChunkRows(
        lo=row,
        hi=row + span.rows,
        blocks=None if span.start == 0 else _indices(span.table[low:high], pool),
        tiles=tuple(tiles),
        is_square=span.start == 0 and (window is None or span.rows <= window),
    )


def _decode_groups(
    decodes: Sequence[tuple[int, SequenceRows]], pool: KvPool, *, window: int | None, dtype: torch.dtype
) -> tuple[DecodeGroup, ...]:
    by_size: dict[int, list[tuple[int, SequenceRows]]] = {}
    for row, span in decodes:
        low, high = _needed_blocks(span, pool, window)
        # Equal bit lengths differ by less than 2x, which bounds what padding costs.
        by_size.setdefault((high - low).bit_length(), []).append((row, span))
    return tuple(_decode_group(members, pool, window=window, dtype=dtype) for members in by_size.values())


def _decode_group(
    members: Sequence[tuple[int, SequenceRows]], pool: KvPool, *, window: int | None, dtype: torch.dtype
) -> DecodeGroup:
    ranges = [_needed_blocks(span, pool, window) for _, span in members]
    width = max(high - low for low, high in ranges)
    blocks: list[int] = []
    ends, begins = [], []
    for (_, span), (low, high) in zip(members, ranges, strict=True):
        blocks.extend(span.table[low:high])
        blocks.extend([GARBAGE_BLOCK] * (width - (high - low)))
        ends.append(span.start + 1 - low * pool.block_size)
        begins.append(0 if window is None else ends[-1] - window)
    at = torch.arange(width * pool.block_size, device=pool.device)
    allowed = (at < _indices(ends, pool)[:, None]) & (at >= _indices(begins, pool)[:, None])
    return DecodeGroup(
        rows=_indices([row for row, _ in members], pool),
        blocks=_indices(blocks, pool),
        mask=_additive(allowed, dtype)[None, :, None],
    )


def _needed_blocks(span: SequenceRows, pool: KvPool, window: int | None) -> tuple[int, int]:
    """The part of the block table that holds every key some row of the span sees."""
    first = 0 if window is None else max(0, span.start - window + 1)
    return first // pool.block_size, -(-(span.start + span.rows) // pool.block_size)


def _indices(values: Sequence[int], pool: KvPool) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=pool.device)


def _band(rows: int, back: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """`[rows, back + rows]`, additive: query `i` sees key `back + j` where `i - window < j <= i`."""
    distance = torch.arange(rows, device=like.device)[:, None] - torch.arange(-back, rows, device=like.device)
    allowed = distance >= 0
    if window is not None:
        allowed &= distance < window
    return _additive(allowed, like.dtype)


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # SDPA turns a boolean mask into this in every call; once per step is enough.
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
