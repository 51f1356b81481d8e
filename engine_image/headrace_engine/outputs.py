"""The events that the engine loop puts into a call's sink for each of its generations.

[PromptScored] -> Delta* -> Done. Each generated token is in exactly one Delta or in the Done; text can come later than
its token (half a character, a possible stop string), so `text` can be empty while `tokens` is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headrace_core.scheduler.events import FinishReason


class RequestProblemKind(StrEnum):
    """The cause of a failure: the engine, the model's numbers, or the request itself."""

    ENGINE = "engine"
    NOT_NUMBERS = "not_numbers"  # the model's logits are NaN or infinite
    IMPOSSIBLE = "impossible"  # the request's own constraints leave no token to choose


@dataclass(frozen=True, slots=True)
class RequestProblem:
    """Why a request failed; `message` is for its client."""

    message: str
    kind: RequestProblemKind = RequestProblemKind.ENGINE

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """One token with its log-probability under the model's raw logits (before penalties, bias and temperature).

    `rank` is 1 for the likeliest; `top` holds (token id, logprob) of the likeliest, best first. All finite.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScored:
    """Scores of the prompt's tokens, in order; the first is None, as nothing precedes it."""

    scores: tuple[TokenScore | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """More output of a running request. `scores` is as long as `token_ids`, or empty if no logprobs were requested."""

    text: str
    token_ids: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request ended: output not yet published, the total number of tokens, and `problem` if it failed.

    `stop_reason` is the stop string or stop token id that ended it; None for EOS and all other reasons.
    """

    text: str
    reason: FinishReason
    num_output_tokens: int
    token_ids: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    problem: RequestProblem | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0


Event = PromptScored | Delta | Done


class EventSink(Protocol):
    """Receives the events of a call's generations. Called by the event loop, in the order of the events."""

    def put(self, index: int, event: Event) -> None:
        """Take an event of generation `index` of the call."""
