"""The waiting queue, in policy order. Long prompts have their own heap, so that short ones can pass them.

Forks are parked outside the heaps while they wait for their sibling's prefill, so they hold up nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.policies import Key, Order
from headrace_core.scheduler.sequence import Sequence

Heap = list[tuple[Key, Sequence]]


class WaitingQueue:
    """Waiting sequences. Removal is lazy: a removed entry is dropped when it reaches the top of its heap."""

    def __init__(self, config: EngineConfig) -> None:
        self._order = Order.of(config)
        self._threshold = config.long_prefill_token_threshold
        self._queued: dict[int, Sequence] = {}
        self._parked: dict[int, dict[int, Sequence]] = {}  # by the sibling's number
        self._num_parked = 0
        self._short: Heap = []
        self._long: Heap = []
        self.tokens = 0  # to prefill, over all waiting sequences; forks have none

    def push(self, seq: Sequence) -> None:
        """Add a sequence. Its `target` must be set."""
        self._queued[seq.number] = seq
        self.tokens += seq.target
        heapq.heappush(self._heap_of(seq), (self._order.queue_key(seq), seq))

    def park(self, seq: Sequence, sibling: Sequence) -> None:
        """Add a fork that waits for `sibling`."""
        seq.sibling = sibling
        self._parked.setdefault(sibling.number, {})[seq.number] = seq
        self._num_parked += 1

    def remove(self, seq: Sequence) -> None:
        """Take out any waiting sequence, not only the head."""
        if seq.number not in self._queued:
            self._unpark(seq)
            return
        del self._queued[seq.number]
        self.tokens -= seq.target
        heap = self._heap_of(seq)
        if heap[0][1] is seq:
            heapq.heappop(heap)
        elif len(heap) > 2 * len(self._queued) + 64:
            self._rebuild()

    def forks_of(self, sibling: Sequence) -> tuple[Sequence, ...]:
        """The forks that wait for the prefill of `sibling`, in queue order."""
        return tuple(sorted(self._parked.get(sibling.number, {}).values(), key=self._order.queue_key))

    def head(self, *, allow_long: bool) -> Sequence | None:
        """The next sequence to serve, or without `allow_long` the next short one. None if there is none."""
        heaps = [heap for heap in (self._short, self._long if allow_long else []) if self._drop_stale(heap)]
        return min(heaps, key=lambda heap: heap[0][0])[0][1] if heaps else None

    def passed(self, head: Sequence | None) -> Sequence | None:
        """The first long prompt, if it is ahead of `head` or there is no head."""
        if not self._drop_stale(self._long):
            return None
        key, seq = self._long[0]
        return seq if head is None or key < self._order.queue_key(head) else None

    def reorder(self, config: EngineConfig) -> None:
        """Follow a changed policy or threshold."""
        self._order = Order.of(config)
        self._threshold = config.long_prefill_token_threshold
        self._rebuild()

    def is_long(self, seq: Sequence) -> bool:
        """Whether its prefill counts as long."""
        return 0 < self._threshold < seq.target

    def __len__(self) -> int:
        return len(self._queued) + self._num_parked

    def __iter__(self) -> Iterator[Sequence]:
        """In queue order, forks last; costs a sort."""
        yield from sorted(self._queued.values(), key=self._order.queue_key)
        yield from (fork for forks in self._parked.values() for fork in forks.values())

    def _unpark(self, seq: Sequence) -> None:
        if seq.sibling is None:
            raise KeyError(f"{seq!r} does not wait")
        forks = self._parked[seq.sibling.number]
        del forks[seq.number]
        self._num_parked -= 1
        if not forks:
            del self._parked[seq.sibling.number]

    def _heap_of(self, seq: Sequence) -> Heap:
        return self._long if self.is_long(seq) else self._short

    def _drop_stale(self, heap: Heap) -> bool:
        while heap and heap[0][1].number not in self._queued:
            heapq.heappop(heap)
        return bool(heap)

    def _rebuild(self) -> None:
        self._short, self._long = [], []
        for seq in sorted(self._queued.values(), key=self._order.queue_key):  # a sorted list is a heap
            self._heap_of(seq).append((self._order.queue_key(seq), seq))
