"""A step while it is planned, and the rules that it follows: who runs, which positions, in which blocks.

Order: every decode, one token each (`decodes`); then prefills that have begun; then admission from the queue (both in
`prefills`). A fork starts with the last chunk of its sibling. Three rules make this safe when memory is short:

1. A prefill is admitted only if its whole target, and one more block for each running sequence, fits in what is free
   beyond what running prefills are still owed. So the targets of all running prefills fit in the pool together;
   a block that several share counts once, as each of them keeps it.
2. A decode that needs a block when none is free, to grow or to copy a shared one, evicts the newest sequence, possibly
   itself. A prefill never evicts; it waits. By rule 1 it can always continue once no decode runs.
3. An evicted sequence is shielded until it has generated another token. Every eviction therefore pays for at least one
   token, and since outputs are finite, evictions come to an end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.scheduler.sequence import Sequence
from headrace_core.scheduler.wait_cause import WaitCause


@dataclass(frozen=True, slots=True)
class Preemption:
    """`seq` was evicted and lost `recompute` computed positions, because the request `because_of` needed a block."""

    seq: Sequence
    recompute: int
    because_of: str


@dataclass(slots=True)
class StepBuilder:
    """Collects the parts of a `StepPlan`: `rows[i]` belongs to `seqs[i]`.

    `first` maps the number of each sequence planned for the first time to the prompt tokens it need not compute.
    `blocked` holds sequences passed over for a cause of their own: prefills that have begun, the head of the queue,
    the first long prompt. All others wait behind the head, which waits for `head_cause`.
    """

    rows: list[ScheduledSeq] = field(default_factory=list)
    seqs: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    evicted: list[Preemption] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    blocked: list[tuple[Sequence, WaitCause]] = field(default_factory=list)
    head_cause: WaitCause | None = None

    def add(self, seq: Sequence, row: ScheduledSeq) -> None:
        """Append `row`, the share of `seq` in this step."""
        self.seqs.append(seq)
        self.rows.append(row)

    def start(self, seq: Sequence, *, given: int) -> None:
        """If this is the first step of `seq`, note it with the `given` tokens that need no computing."""
        if not seq.started:
            seq.started = True
            self.first[seq.number] = given

    def block_head(self, seq: Sequence, cause: WaitCause) -> None:
        """The head of the queue must wait for `cause`, and all others behind it."""
        self.blocked.append((seq, cause))
        self.head_cause = cause

    def block_passed(self, seq: Sequence | None) -> None:
        """`seq`, a long prompt ahead of the head, must wait for another long one. Alone in the queue it is the head."""
        if seq is not None:
            self.blocked.append((seq, WaitCause.LONG_PREFILL_LIMIT))
            self.head_cause = self.head_cause or WaitCause.LONG_PREFILL_LIMIT
