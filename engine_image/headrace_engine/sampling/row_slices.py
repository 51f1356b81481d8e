"""Rows of logits in slices of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Numbers in one slice. On a CPU a slice fits the L2 cache, and the allocator reuses its temporary tensors: larger ones
# come from the system page by page, at five times the cost of the arithmetic. On a GPU fewer launches are better.
CPU_NUMBERS, GPU_NUMBERS = 1 << 18, 1 << 25


def row_slices(count: int, logits: torch.Tensor) -> Iterator[slice]:
    """Slices that cover `count` rows of the width of `logits [rows, vocabulary]`, in order."""
    numbers = CPU_NUMBERS if logits.device.type == "cpu" else GPU_NUMBERS
    step = max(1, numbers // max(1, logits.shape[-1]))
    return (slice(at, min(at + step, count)) for at in range(0, count, step))
