"""Build a step's tensors from the sequences that the scheduler planned, with only two copies to the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace_engine.attention.base import AttentionStep, RowSpan
from headrace_engine.attention.kv_cache import GARBAGE_BLOCK, KvPool


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence's rows in a step: `rows` tokens from position `start`, in the blocks of `table`."""

    start: int
    rows: int
    table: tuple[int, ...]


def make_step(sequences: Sequence[SequenceRows], pool: KvPool) -> AttentionStep:
    """A step with the rows of `sequences`, one sequence after another."""
    size = pool.block_size
    positions: list[int] = []
    slots: list[int] = []
    spans: list[RowSpan] = []
    for part in sequences:
        end = part.start + part.rows
        spans.append(RowSpan(len(positions), part.rows, end))
        positions.extend(range(part.start, end))
        for block in range(part.start // size, _blocks(end, size)):
            shift = (part.table[block] - block) * size
            slots.extend(range(shift + max(part.start, block * size), shift + min(end, (block + 1) * size)))
    width = max((_blocks(span.keys, size) for span in spans), default=0)
    tables: list[int] = []
    for part, span in zip(sequences, spans, strict=True):
        used = _blocks(span.keys, size)
        tables.extend(part.table[:used])
        tables.extend([GARBAGE_BLOCK] * (width - used))
    starts = [*(span.first for span in spans), len(positions)]
    # Two copies to the device; the step's tensors are views of them.
    rows = torch.tensor([slots, positions], dtype=torch.int64, device=pool.device)
    # Going through an array is several times faster than a list, and tables grow with sequences and context.
    raw = array("i", [*starts, *(span.keys for span in spans), *tables])
    numbers = torch.frombuffer(raw, dtype=torch.int32).to(pool.device)
    count = len(spans)
    return AttentionStep(
        block_tables=numbers[2 * count + 1 :].view(count, width),
        query_starts=numbers[: count + 1],
        key_lengths=numbers[count + 1 : 2 * count + 1],
        slots=rows[0],
        positions=rows[1],
        spans=tuple(spans),
        block_size=size,
    )


def _blocks(keys: int, size: int) -> int:
    return -(-keys // size)
