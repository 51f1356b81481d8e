"""The order of the waiting queue, and its reverse, the order in which running sequences lose their blocks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.sequence import Sequence

Key = tuple[float, ...]


class SchedulingPolicy(StrEnum):
    """Values of the knob `scheduling_policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Batching(StrEnum):
    """Values of the knob `batching`."""

    CONTINUOUS = "continuous"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Order:
    """The policy in force. Waiting for `ageing` seconds is worth one level of priority; 0 turns ageing off.

    All waiting requests age alike, so the key is priority plus arrival over ageing, which does not depend on `now`.
    """

    policy: SchedulingPolicy
    ageing: float

    @classmethod
    def of(cls, config: EngineConfig) -> Order:
        """The order that `config` asks for."""
        return cls(SchedulingPolicy(config.scheduling_policy), config.priority_ageing_seconds)

    def queue_key(self, seq: Sequence) -> Key:
        """Lower goes first. Evicted sequences go to the front; under the priority policy, of their level."""
        late = 0 if seq.evicted else 1
        match self.policy:
            case SchedulingPolicy.FCFS:
                return (late, seq.request.arrival, seq.number)
            case SchedulingPolicy.PRIORITY:
                return (self._rank(seq), late, seq.request.arrival, seq.number)
        assert_never(self.policy)

    def eviction_key(self, seq: Sequence) -> Key:
        """Higher is evicted first: the newest, under the priority policy the newest of the lowest level."""
        match self.policy:
            case SchedulingPolicy.FCFS:
                return (seq.request.arrival, seq.number)
            case SchedulingPolicy.PRIORITY:
                return (self._rank(seq), seq.request.arrival, seq.number)
        assert_never(self.policy)

    def _rank(self, seq: Sequence) -> float:
        priority = seq.request.priority
        return priority + seq.request.arrival / self.ageing if self.ageing else priority
