"""One step: who runs, which positions, in which blocks.

Order: every decode, one token each; then prefills that have begun; then admission from the queue. A fork starts with
the last chunk of its sibling. Three rules make it safe when memory is short:

1. A prefill is admitted only if its whole target, and one more block for each running sequence, fits in what is free
   beyond what running prefills are still owed. So the targets of all running prefills fit in the pool together;
   a block that several share counts once, as each of them keeps it.
2. A decode that needs a block when none is free, to grow or to copy a shared one, evicts the newest sequence, possibly
   itself; a prefill never evicts, it waits. By rule 1 it can always go on once no decode runs.
3. Who was evicted is shielded until it has generated another token. Every eviction therefore pays for at least one
   token, and since outputs are finite, evictions come to an end.
"""

from __future__ import annotations

from headrace_core.scheduler.decodes import plan_decodes
from headrace_core.scheduler.prefills import Prefills
from headrace_core.scheduler.state import SchedulerState
from headrace_core.scheduler.step_builder import StepBuilder


def draft_step(ledger: SchedulerState) -> StepBuilder:
    """Decide one step. Takes blocks, moves sequences between queue and batch."""
    draft = StepBuilder()
    plan_decodes(ledger, draft)
    Prefills(ledger, draft).plan()
    return draft
