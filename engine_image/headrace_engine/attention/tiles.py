"""How the SDPA backend divides a step: into decodes and chunks, with the blocks to gather and the masks.

A layout is made once per step and sliding window. Only blocks with a key that some row of the sequence can see are
gathered, so a window limits the cost of a long context; no mask spans two sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headrace_engine.attention.base import AttentionStep, RowSpan

TILE = 512  # queries attended at once: limits the mask to TILE x context


@dataclass(frozen=True, slots=True)
class GatheredBlocks:
    """Blocks `[n]` to read, in order; `by_heads` caches them as (block, head) pages by number of KV heads."""

    blocks: torch.Tensor
    by_heads: dict[int, torch.Tensor] = field(default_factory=dict)

    def pages(self, kv_heads: int) -> torch.Tensor:
        """Indices into a pool viewed as `[blocks * kv_heads, ...]`, head by head: `[kv_heads * n]`."""
        found = self.by_heads.get(kv_heads)
        if found is None:
            heads = torch.arange(kv_heads, dtype=self.blocks.dtype, device=self.blocks.device)[:, None]
            found = self.by_heads[kv_heads] = (self.blocks * kv_heads + heads).flatten()
        return found


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one row each and contexts of similar length. Blocks are padded with block 0 to one width."""

    members: int
    rows: torch.Tensor | slice  # of the step
    blocks: GatheredBlocks
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
    """A sequence with more than one row. `blocks` is None if its own rows are all the keys it needs."""

    lo: int
    hi: int
    blocks: GatheredBlocks | None
    tiles: tuple[Tile, ...]
    is_square: bool  # every query sees exactly the rows up to its own


@dataclass(slots=True)
class Layout:
    """A step for the layers with one sliding window. `band` is made when a chunk first needs a mask."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkRows, ...]
    window: int | None
    band: torch.Tensor | None = None

    def mask(self, tile: Tile, like: torch.Tensor) -> torch.Tensor:
        """Additive mask `[queries, keys]`. It depends only on distance, so every tile's mask is a slice of one band."""
        if self.band is None:
            tiles = [tile for chunk in self.chunks for tile in chunk.tiles]
            self.band = _band(
                max(tile.hi - tile.lo for tile in tiles), max(tile.back for tile in tiles), self.window, like
            )
        rows = tile.hi - tile.lo
        middle = self.band.shape[1] - self.band.shape[0]
        return self.band[:rows, middle - tile.back : middle + rows]


def make_layout(step: AttentionStep, window: int | None, dtype: torch.dtype) -> Layout:
    """The step for layers with this window; `dtype` is that of the queries."""
    by_size: dict[int, list[int]] = {}
    chunks = []
    for at, span in enumerate(step.spans):
        if span.rows > 1:
            chunks.append(_chunk(step, at, window))
        elif span.rows == 1:
            low, high = _needed_blocks(span, step.block_size, window)
            # Numbers of equal bit length differ by less than 2x, which limits the cost of padding.
            by_size.setdefault((high - low).bit_length(), []).append(at)
    groups = tuple(_decode_group(step, members, window=window, dtype=dtype) for members in by_size.values())
    return Layout(groups, tuple(chunks), window)


def _chunk(step: AttentionStep, at: int, window: int | None) -> ChunkRows:
    span = step.spans[at]
    low, high = _needed_blocks(span, step.block_size, window)
    origin = 0 if span.start == 0 else low * step.block_size  # position of the first key
    tiles = []
    for done in range(0, span.rows, TILE):
        rows = min(TILE, span.rows - done)
        row, start = span.first + done, span.start + done
        first = origin if window is None else max(origin, start - window + 1)
        tiles.append(Tile(row, row + rows, first - origin, start + rows - origin, start - first))
    return ChunkRows(
        lo=span.first,
        hi=span.first + span.rows,
        blocks=None if span.start == 0 else GatheredBlocks(step.block_tables[at, low:high]),
        tiles=tuple(tiles),
        is_square=span.start == 0 and (window is None or span.rows <= window),
    )


def _decode_group(
    step: AttentionStep, members: Sequence[int], *, window: int | None, dtype: torch.dtype
) -> DecodeGroup:
    spans = [step.spans[at] for at in members]
    needed = [_needed_blocks(span, step.block_size, window) for span in spans]
    width = max(high - low for low, high in needed)
    ends = [span.keys - low * step.block_size for span, (low, _) in zip(spans, needed, strict=True)]
    keys = torch.arange(width * step.block_size, device=step.block_tables.device)
    allowed = keys < _column(ends, step)
    if window is not None:
        allowed &= keys >= _column([end - window for end in ends], step)
    rows = [span.first for span in spans]
    return DecodeGroup(
        members=len(members),
        rows=_consecutive(rows) or _column(rows, step)[:, 0],
        blocks=GatheredBlocks(_cut_tables(step, members, [low for low, _ in needed], width).flatten()),
        mask=_additive(allowed, dtype)[None, :, None],
    )


def _cut_tables(step: AttentionStep, members: Sequence[int], lows: Sequence[int], width: int) -> torch.Tensor:
    """`[members, width]`: each member's blocks from its entry of `lows` on. The mask hides blocks beyond its keys."""
    together = _consecutive(members)
    tables = step.block_tables[_column(members, step)[:, 0] if together is None else together]
    if not any(lows):
        return tables[:, :width]
    columns = _column(lows, step) + torch.arange(width, device=tables.device)
    # At the edge of the table, a member with fewer blocks reads its last one again.
    return tables.gather(1, columns.clamp_(max=tables.shape[1] - 1))


def _consecutive(numbers: Sequence[int]) -> slice | None:
    """Ascending `numbers` as a slice if they are consecutive, which avoids an index tensor and a copy; else None."""
    first, end = numbers[0], numbers[-1] + 1
    return slice(first, end) if end - first == len(numbers) else None


def _column(numbers: Sequence[int], step: AttentionStep) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=step.block_tables.device)[:, None]


def _needed_blocks(span: RowSpan, block_size: int, window: int | None) -> tuple[int, int]:
    """First and end index in the block table of the blocks that hold every key some row of the span sees."""
    first = 0 if window is None else max(0, span.start - window + 1)
    return first // block_size, -(-span.keys // block_size)


def _band(rows: int, back: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """`[rows, back + rows]`, additive: query `i` sees key `back + j` where `i - window < j <= i`."""
    distance = torch.arange(rows, device=like.device)[:, None] - torch.arange(-back, rows, device=like.device)
    allowed = distance >= 0
    if window is not None:
        allowed &= distance < window
    return _additive(allowed, like.dtype)


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # SDPA would convert a boolean mask in every call; once per step is enough.
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
