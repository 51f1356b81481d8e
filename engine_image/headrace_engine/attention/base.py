"""The contract between the engine and attention backends: a step's data, a layer's parameters, a backend's interface.

A step is plain data that any kernel over a block table can read. How it is cut into tiles, masks or work items is up
to each backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch

from headrace_engine.attention.features import BackendAbilities
from headrace_engine.attention.kv_cache import KvPool


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One sequence's share of a step: `rows` rows from row `first`, the last of which sees `keys` keys."""

    first: int
    rows: int
    keys: int

    @property
    def start(self) -> int:
        """Position of the first row in its sequence, which is also the number of keys before this step."""
        return self.keys - self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """The rows of one step, sequence after sequence. Tensors are on the pool's device; layers share them.

    Position `p` of sequence `s` is stored in block `block_tables[s, p // block_size]` at offset `p % block_size`.
    `spans` repeats the lengths as Python numbers for decisions on the host: reading a tensor would wait for the GPU.
    """

    block_tables: torch.Tensor  # int32 [sequences, most blocks]: the blocks that hold keys, padded with GARBAGE_BLOCK
    query_starts: torch.Tensor  # int32 [sequences + 1]: sequence s has the rows query_starts[s] .. query_starts[s + 1]
    key_lengths: torch.Tensor  # int32 [sequences]: number of keys, including those of this step
    slots: torch.Tensor  # int64 [rows]: block * block_size + offset, where a row's key and value go
    positions: torch.Tensor  # int64 [rows]: position in the row's sequence
    spans: tuple[RowSpan, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer's attention parameters. Always causal; with a window, a query sees only the last `window` keys."""

    index: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [query heads]


class PreparedStep(Protocol):
    """A step, ready to be attended by each layer in turn."""

    def forward(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write `k` and `v` to their slots in the pool, then attend.

        `q [Hq, N, D]`, `k [Hkv, N, D]`, `v [Hkv, N, Dv]` after rotation -> `[N, Hq, Dv]`. Keys and values, including
        this step's own, are used as the pool rounds them, so chunk borders do not affect the result.
        """


class AttentionBackend(ABC):
    """Computes the attention of every layer. Keeps nothing between steps that would change a result."""

    name: str  # its value of the knob attention_backend
    abilities: BackendAbilities

    @abstractmethod
    def prepare(self, step: AttentionStep, pool: KvPool) -> PreparedStep:
        """Called once per step, before the first layer. Data that layers share is made here or on first use."""
