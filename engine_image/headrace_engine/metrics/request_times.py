"""What the metrics know of one live request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from headrace_core.scheduler.events import ScheduledSeq


@dataclass(slots=True)
class Siblings:
    """The outputs of one prompt: `n` asked for, `ended` well so far, the `longest` of these in tokens."""

    n: int = 1
    ended: int = 0
    longest: int = 0

    def end(self, tokens: int) -> bool:
        """One more ended; whether it was the last."""
        self.ended += 1
        self.longest = max(self.longest, tokens)
        return self.ended == self.n


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one request, in seconds, and what was computed for it, in tokens.

    `generation` is the one that it was admitted under. `fresh` counts what was computed for it the first time.
    """

    arrival: float
    prompt_tokens: int
    generation: int
    started: float | None = None
    tokens: list[float] = field(default_factory=list)
    request_id: str = ""
    queued: float | None = None
    max_tokens: int | None = None
    siblings: Siblings = field(default_factory=Siblings)
    preemptions: int = 0
    cached_tokens: int = 0
    fresh: int = 0
    _reached: int = -1  # positions below it were computed, or found in the cache; -1 before the first plan

    @property
    def ttft(self) -> float | None:
        """Arrival to first token."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def gaps(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.tokens)]

    def computed(self, seq: ScheduledSeq) -> int:
        """A step ran these rows; how many of them had been computed before."""
        start, rows = seq.start, len(seq.token_ids)
        reached, end = self._reached, start + rows
        if start == reached:  # as nearly always
            self.fresh += rows
            self._reached = end
            return 0
        if reached < 0:
            self.cached_tokens = min(start, self.prompt_tokens)
            reached = start
        again = max(0, min(end, reached) - start)
        self.fresh += rows - again
        self._reached = max(reached, end)
        return again
