"""One generation's times and token counts, as metrics, access log, traces and explain read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from headrace_core.scheduler.events import FinishReason, Request, ScheduledSeq
from headrace_engine.outputs import RequestProblem


@dataclass(slots=True)
class Siblings:
    """The outputs of one prompt: `n` requested, `ended` well so far, and tokens of the `longest` of those."""

    n: int = 1
    ended: int = 0
    longest: int = 0

    def end(self, tokens: int) -> bool:
        """One more output ended well, with so many tokens; return whether it was the last."""
        self.ended += 1
        self.longest = max(self.longest, tokens)
        return self.ended == self.n


@dataclass(slots=True, kw_only=True, eq=False)
class GenerationRecord:
    """Written by the step thread, readable by any. Times are in seconds on the engine's monotonic clock.

    It outlives its request, so it holds no prompt, and no output unless `text` is a list. `index` is its number among
    the generations of its call; `config_generation` the one that it was queued under; `fresh` the number of tokens
    computed for it for the first time.
    """

    id: str
    arrival: float
    prompt_tokens: int
    max_tokens: int
    index: int = 0
    fork_of: str | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    config_generation: int = 0
    queued: float | None = None
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    fresh: int = 0
    reason: FinishReason | None = None
    problem: RequestProblem | None = None
    text: list[str] | None = None  # a list if outputs are logged
    siblings: Siblings = field(default_factory=Siblings)
    _token_times: list[float] = field(default_factory=list)
    _reached: int = -1  # positions below it were computed, or found in the cache; -1 before the first plan

    @classmethod
    def of(cls, request: Request, *, index: int = 0, temperature: float = 0.0, top_p: float = 1.0) -> GenerationRecord:
        """The record of a new request."""
        return cls(
            id=request.request_id, arrival=request.arrival, prompt_tokens=len(request.prompt_token_ids),
            max_tokens=request.max_tokens, index=index, fork_of=request.fork_of, temperature=temperature, top_p=top_p,
        )  # fmt: skip

    @property
    def ttft(self) -> float | None:
        """Arrival to first token, seconds."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def newest_gap(self) -> float | None:
        """Seconds between the last two tokens."""
        times = self._token_times
        return times[-1] - times[-2] if len(times) > 1 else None

    def start(self, at: float, cached_tokens: int) -> None:
        """The first chunk was planned at `at`, after `cached_tokens` from the cache. Later calls are ignored."""
        if self.started is None:
            self.started, self.cached_tokens = at, cached_tokens

    def token(self, now: float) -> None:
        """A token was generated."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.output_tokens += 1
        self._token_times.append(now)

    def end(self, reason: FinishReason, now: float, problem: RequestProblem | None = None) -> None:
        """It ended. Later calls are ignored: after a cut, the end that the client saw stays."""
        if self.reason is None:
            self.ended, self.problem = now, problem
            self.reason = reason

    def take_gaps(self) -> list[float]:
        """The seconds between successive tokens. The times are then dropped, as there is one per token."""
        times, self._token_times = self._token_times, []
        return [after - before for before, after in pairwise(times)]

    def computed(self, seq: ScheduledSeq) -> int:
        """A step ran these rows; return how many of them had been computed before."""
        start, rows = seq.start, len(seq.token_ids)
        reached, end = self._reached, start + rows
        if start == reached:  # as nearly always
            self.fresh += rows
            self._reached = end
            return 0
        reached = start if reached < 0 else reached
        again = max(0, min(end, reached) - start)
        self.fresh += rows - again
        self._reached = max(reached, end)
        return again
