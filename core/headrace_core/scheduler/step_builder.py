"""A step in the making, and what was decided against."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.sequence import Sequence
from headrace_core.trace.explain import WaitCause


@dataclass(frozen=True, slots=True)
class Preemption:
    """`seq` was evicted with `recompute` computed positions, as the request `because_of` needed a block."""

    seq: Sequence
    recompute: int
    because_of: str


@dataclass(slots=True)
class StepBuilder:
    """Rows and their sequences, side by side, and the rest of a plan.

    `first` are the numbers of `seqs` that had never been planned before, with the tokens that they need not compute.
    `blocked` are those passed over for a cause of their own: prefills that have begun, the head of the queue, the
    first long prompt. Everybody else waits behind the head, which waits for `head_cause`.
    """

    rows: list[ScheduledSeq] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    evicted: list[Preemption] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    blocked: list[tuple[Sequence, WaitCause]] = field(default_factory=list)
    head_cause: WaitCause | None = None

    def add(self, seq: Sequence, row: ScheduledSeq) -> None:
        """Plan `row` for `seq`."""
        self.seqs.append(seq)
        self.rows.append(row)

    def start(self, seq: Sequence, *, given: int) -> None:
        """Note the first step of a request, which has `given` tokens without computing them."""
        if not seq.started:
            seq.started = True
            self.first[seq.number] = given

    def block_head(self, seq: Sequence, cause: WaitCause) -> None:
        """The head of the queue must wait, and everybody behind it."""
        self.blocked.append((seq, cause))
        self.head_cause = cause

    def block_passed(self, seq: Sequence | None) -> None:
        """A long prompt ahead of the head must wait for another; alone in the queue it is the head."""
        if seq is not None:
            self.blocked.append((seq, WaitCause.LONG_PREFILL_LIMIT))
            self.head_cause = self.head_cause or WaitCause.LONG_PREFILL_LIMIT
