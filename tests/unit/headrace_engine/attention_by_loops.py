"""A second attention backend, for tests: loops over rows, heads and block tables, in fp64.

It reads nothing of a step but what `AttentionStep` promises to kernels, and none of the numbers kept for the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from headrace_engine.attention.base import AttentionBackend, AttentionLayer, AttentionStep
from headrace_engine.attention.features import ANYTHING, BackendAbilities, Feature
from headrace_engine.attention.kv_cache import KvPool


def abilities(**less: Any) -> BackendAbilities:
    """Everything on a CPU, but for `less`."""
    every: dict[str, Any] = {
        "devices": {"cpu"}, "dtypes": ANYTHING, "head_sizes": ANYTHING, "block_sizes": ANYTHING,
        "features": frozenset(Feature),
    }  # fmt: skip
    return BackendAbilities(**every | less)


class LoopStep:
    def __init__(self, step: AttentionStep, pool: KvPool, seen: list[AttentionLayer]) -> None:
        self.block_tables = step.block_tables.tolist()
        self.query_starts = step.query_starts.tolist()
        self.key_lengths = step.key_lengths.tolist()
        self.slots = step.slots.tolist()
        self.block_size = step.block_size
        self.pool = pool
        self.seen = seen

    def forward(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.seen.append(layer)
        keys, values = self.pool.keys[layer.index], self.pool.values[layer.index]
        for row, slot in enumerate(self.slots):
            block, offset = divmod(slot, self.block_size)
            keys[block, :, offset] = k[:, row].to(keys.dtype)
            values[block, :, offset] = v[:, row].to(values.dtype)
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[-1])
        for sequence, length in enumerate(self.key_lengths):
            begin, end = self.query_starts[sequence : sequence + 2]
            for row in range(begin, end):
                last = length - (end - row)
                first = 0 if layer.window is None else max(0, last - layer.window + 1)
                places = [self.place(sequence, position) for position in range(first, last + 1)]
                for head in range(len(q)):
                    kv_head = head // (len(q) // len(k))
                    out[row, head] = attend(
                        q[head, row].double(),
                        torch.stack([keys[block, kv_head, offset] for block, offset in places]).double(),
                        torch.stack([values[block, kv_head, offset] for block, offset in places]).double(),
                        layer=layer,
                        sink=-math.inf if layer.sinks is None else float(layer.sinks[head]),
                    )
        return out

    def place(self, sequence: int, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.block_size)
        return self.block_tables[sequence][block], offset


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layer: AttentionLayer, sink: float) -> torch.Tensor:
    """`[Dv]` of one query over the keys that it sees. A sink joins the sum of weights and has no value."""
    scores = k @ q * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    top = max(float(scores.max()), sink)
    weights = torch.exp(scores - top)
    return weights @ v / (weights.sum() + math.exp(sink - top))


class LoopBackend(AttentionBackend):
    """`less`: what it cannot do. `seen` are the layers of its calls."""

    def __init__(self, name: str = "loops", **less: Any) -> None:
        self.name = name
        self.abilities = abilities(**less)
        self.seen: list[AttentionLayer] = []

    def prepare(self, step: AttentionStep, pool: KvPool) -> LoopStep:
        return LoopStep(step, pool, self.seen)
