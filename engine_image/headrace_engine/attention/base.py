"""The contract between the engine and a kernel: what a step hands to attention, what a layer asks, what a backend does.

A step is plain data that any kernel over a block table understands. How a backend cuts it into tiles, masks or
work items is that backend's own affair.
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
        """Position of the first row in its sequence: as many keys were there before this step."""
        return self.keys - self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """The rows of one step, sequence after sequence. Tensors are on the pool's device; layers share them.

    Position `p` of sequence `s` is kept in block `block_tables[s, p // block_size]` at offset `p % block_size`.
    `spans` repeats lengths as numbers, for what is decided on the host: reading a tensor there would wait for a GPU.
    """

    block_tables: torch.Tensor  # int32 [sequences, most blocks], as long as the keys need; padded with GARBAGE_BLOCK
    query_starts: torch.Tensor  # int32 [sequences + 1]: sequence s has the rows query_starts[s] .. query_starts[s + 1]
    key_lengths: torch.Tensor  # int32 [sequences]: keys of each, those of this step included
    slots: torch.Tensor  # int64 [rows]: block * block_size + offset, where a row's key and value go
    positions: torch.Tensor  # int64 [rows]: in the row's own sequence
    spans: tuple[RowSpan, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What a layer asks of its attention. Always causal; with a window, a query sees the last `window` keys only."""

    index: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [query heads]


class PreparedStep(Protocol):
    """A step, ready to be attended by each layer in turn."""

    def forward(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write `k` and `v` to their slots in the pool, then attend.

        `q [Hq, N, D]`, `k [Hkv, N, D]`, `v [Hkv, N, Dv]` after rotation -> `[N, Hq, Dv]`. Keys and values count as
        the pool rounds them, this step's own included: where chunks begin changes nothing.
        """


class AttentionBackend(ABC):
    """A kernel behind the attention of every layer. Keeps nothing between steps that would change a result."""

    name: str  # as the knob attention_backend spells it
    abilities: BackendAbilities

    @abstractmethod
    def prepare(self, step: AttentionStep, pool: KvPool) -> PreparedStep:
        """Called once per step, before the first layer: what layers share is made here or on first use."""
