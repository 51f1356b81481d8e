"""One request on its way through the scheduler.

    WAITING --start--> PREFILL --last chunk committed--> DECODE --last token--> ENDED
       ^                  |                                 |
       +----- evict ------+---------------------------------+        any --abort, error--> ENDED

PREFILL computes positions .. target-1, from 0 or from where the prefix cache ends; `target` counts the tokens known at
the start: the prompt, and after a preemption also what was generated. DECODE computes one position a step: that of
the newest token. A fork waits for its sibling's prefill and shares its blocks: PREFILL is then the one step in which
the sibling's last chunk runs.
"""

from __future__ import annotations

from enum import StrEnum

from headrace_core.scheduler.events import Request
from headrace_core.scheduler.prefix_cache import Chain


class SequencePhase(StrEnum):
    """States of a sequence; the module's diagram shows the transitions."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


class Sequence:
    """Mutable state of one request. Only `SchedulerState`, `Scheduler` and `Prefills` change it."""

    __slots__ = (
        "begun", "blocks", "chain", "computed", "evicted", "fresh", "high_water", "number", "phase", "prompt_len",
        "request", "request_id", "sibling", "started", "target", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.request_id = request.request_id  # unique among live requests
        self.number = number  # order of submission
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.chain = Chain(self.tokens, request.cache_salt)
        self.blocks: tuple[int, ...] = ()
        self.computed = 0  # positions whose KV is in `blocks`
        self.high_water = 0  # most positions ever computed or found in the cache; work below it is recomputation
        self.fresh = 0  # positions computed that were not recomputation
        self.prompt_len = self.target = len(self.tokens)
        self.phase = SequencePhase.WAITING
        self.sibling: Sequence | None = None  # whose prefill a fork waits for, then shares until the commit
        self.started = False  # a first chunk has been planned; `Started` is reported at its commit
        self.begun = False  # a chunk was planned since it last left the queue
        self.evicted = False  # at least once: waits at the front, then keeps its blocks until it makes progress

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining_prefill(self) -> int:
        """Positions of the prefill that are not computed yet."""
        return self.target - self.computed

    def repeated(self, start: int, end: int) -> int:
        """How many of the positions `start .. end-1` had been computed or cached before."""
        return 0 if start >= self.high_water else min(end, self.high_water) - start

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request_id} {self.phase} {self.computed}/{len(self.tokens)} tokens "
            f"{len(self.blocks)} blocks>"
        )
