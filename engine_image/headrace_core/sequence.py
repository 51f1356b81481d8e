"""One request on its way through the scheduler.

    WAITING --start--> PREFILL --last chunk committed--> DECODE --last token--> ENDED
       ^                  |                                 |
       +----- evict ------+---------------------------------+        any --abort, error--> ENDED

PREFILL computes positions 0 .. target-1, where `target` counts the tokens known at the start: the prompt, and after a
preemption also what was generated. DECODE computes one position a step: that of the newest token.
"""

from __future__ import annotations

from enum import StrEnum

from headrace_core.events import Request


class Phase(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


class Sequence:
    """Mutable state of one request. Only `Ledger` and `Scheduler` change it."""

    __slots__ = (
        "blocks", "computed", "evicted", "high_water", "number", "phase", "request", "request_id", "started", "target",
        "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.request_id = request.request_id  # unique among live requests
        self.number = number  # order of submission
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.blocks: tuple[int, ...] = ()
        self.computed = 0  # positions whose KV is in `blocks`
        self.high_water = 0  # most positions ever computed: below it, work is recomputation
        self.target = len(self.tokens)
        self.phase = Phase.WAITING
        self.started = False  # a first chunk was planned once
        self.evicted = False  # once, at least: waits at the front, and keeps its blocks until it made progress

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def remaining_prefill(self) -> int:
        """Positions of the prefill that are not computed yet."""
        return self.target - self.computed

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.request_id} {self.phase} {self.computed}/{len(self.tokens)} tokens "
            f"{len(self.blocks)} blocks>"
        )
