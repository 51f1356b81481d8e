"""Who goes first: the order of the waiting queue, and its reverse, the order in which sequences lose their blocks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum
from typing import assert_never

from headrace_core.config import EngineConfig
from headrace_core.sequence import Sequence

Key = tuple[float, ...]


class SchedulingPolicy(StrEnum):
    """Values of the knob `scheduling_policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Batching(StrEnum):
    """Values of the knob `batching`."""

    CONTINUOUS = "continuous"
    STATIC = "static"


def queue_key(seq: Sequence, policy: SchedulingPolicy) -> Key:
    """Lower goes first. Whoever was evicted waits at the front, of its priority where that counts."""
    late = 0 if seq.evicted else 1
    match policy:
        case SchedulingPolicy.FCFS:
            return (late, seq.request.arrival, seq.number)
        case SchedulingPolicy.PRIORITY:
            return (seq.request.priority, late, seq.request.arrival, seq.number)
    assert_never(policy)


def eviction_key(seq: Sequence, policy: SchedulingPolicy) -> Key:
    """Higher is evicted first: the newest, or of the lowest priority the newest."""
    match policy:
        case SchedulingPolicy.FCFS:
            return (seq.request.arrival, seq.number)
        case SchedulingPolicy.PRIORITY:
            return (seq.request.priority, seq.request.arrival, seq.number)
    assert_never(policy)


class WaitingQueue:
    """Waiting sequences in policy order. Long prompts have their own heap, so that short ones can pass them.

    Removal is lazy: an entry whose number is not in `_live` is dropped when it comes to the top.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._policy = SchedulingPolicy(config.scheduling_policy)
        self._threshold = config.long_prefill_token_threshold
        self._live: dict[int, Sequence] = {}
        self._short: list[tuple[Key, Sequence]] = []
        self._long: list[tuple[Key, Sequence]] = []
        self.tokens = 0  # to prefill, of all that wait

    def push(self, seq: Sequence) -> None:
        """Add a sequence, its `target` set."""
        self._live[seq.number] = seq
        self.tokens += seq.target
        heapq.heappush(self._heap_of(seq), (queue_key(seq, self._policy), seq))

    def remove(self, seq: Sequence) -> None:
        """Take out any sequence that waits, at the head or not."""
        del self._live[seq.number]
        self.tokens -= seq.target
        heap = self._heap_of(seq)
        if heap[0][1] is seq:
            heapq.heappop(heap)
        elif len(heap) > 2 * len(self._live) + 64:
            self._rebuild()

    def head(self, *, allow_long: bool) -> Sequence | None:
        """Who goes first. Without `allow_long`, the first that is not long."""
        heaps = [heap for heap in (self._short, self._long if allow_long else []) if self._drop_stale(heap)]
        return min(heaps, key=lambda heap: heap[0][0])[0][1] if heaps else None

    def reorder(self, config: EngineConfig) -> None:
        """Follow a changed policy or threshold."""
        self._policy = SchedulingPolicy(config.scheduling_policy)
        self._threshold = config.long_prefill_token_threshold
        self._rebuild()

    def is_long(self, seq: Sequence) -> bool:
        """Whether its prefill counts as long."""
        return 0 < self._threshold < seq.target

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Sequence]:
        """In queue order; costs a sort."""
        return iter(sorted(self._live.values(), key=lambda seq: queue_key(seq, self._policy)))

    def _heap_of(self, seq: Sequence) -> list[tuple[Key, Sequence]]:
        return self._long if self.is_long(seq) else self._short

    def _drop_stale(self, heap: list[tuple[Key, Sequence]]) -> bool:
        while heap and heap[0][1].number not in self._live:
            heapq.heappop(heap)
        return bool(heap)

    def _rebuild(self) -> None:
        self._short, self._long = [], []
        for seq in self:  # sorted, and a sorted list is a heap
            self._heap_of(seq).append((queue_key(seq, self._policy), seq))
