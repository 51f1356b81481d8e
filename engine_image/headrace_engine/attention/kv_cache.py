"""The KV pool: per attention layer one tensor of keys and one of values, `[blocks, kv heads, block size, head dim]`.

Block 0 belongs to no sequence: only padding reads and writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headrace_engine.attention.features import Feature

GARBAGE_BLOCK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """KV shape of one layer. `value_dim` can differ from `key_dim` (MLA). `features`: those the layer needs."""

    kv_heads: int
    key_dim: int
    value_dim: int
    features: frozenset[Feature] = frozenset()

    @property
    def elements_per_token(self) -> int:
        """How many numbers the layer stores per token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """Tensors of keys and values by layer index, and their common sizes."""

    keys: Mapping[int, torch.Tensor]
    values: Mapping[int, torch.Tensor]
    block_size: int
    num_blocks: int
    device: torch.device
    dtype: torch.dtype


def block_bytes(layers: Mapping[int, LayerShape], *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return sum(layer.elements_per_token for layer in layers.values()) * block_size * dtype.itemsize


def make_pool(
    layers: Mapping[int, LayerShape], *, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> KvPool:
    """Allocate `num_blocks` blocks, block 0 included."""

    def allocate(kv_heads: int, dim: int) -> torch.Tensor:
        # Zeroes, not garbage: a masked key still meets the softmax, and NaN times 0 is NaN.
        return torch.zeros(num_blocks, kv_heads, block_size, dim, dtype=dtype, device=device)

    return KvPool(
        keys={index: allocate(layer.kv_heads, layer.key_dim) for index, layer in layers.items()},
        values={index: allocate(layer.kv_heads, layer.value_dim) for index, layer in layers.items()},
        block_size=block_size,
        num_blocks=num_blocks,
        device=device,
        dtype=dtype,
    )


def copy_blocks(pool: KvPool, copies: Sequence[tuple[int, int]]) -> None:
    """Copy blocks (source, target) in all layers. Every source is read before any target is written."""
    if not copies:
        return
    sources, targets = (torch.tensor(side, dtype=torch.long, device=pool.device) for side in zip(*copies, strict=True))
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor.index_copy_(0, targets, tensor.index_select(0, sources))
