"""The sampling state of one request: its tokens and its position in its grammar.

Owned by the loop and advanced only by accepted tokens, so failed or repeated steps do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_engine.sampling.params import SamplingParams


class TokenState:
    """The tokens of one request. `prompt` is needed only if `params.needs_tokens`."""

    __slots__ = ("counts", "matcher", "params", "prompt", "prompt_scored", "seen")

    def __init__(self, params: SamplingParams, prompt: Sequence[int] = ()) -> None:
        if params.needs_tokens and len(prompt) != params.prompt_len:
            raise ValueError(f"penalties, grammar and prompt scores need the prompt's {params.prompt_len} tokens")
        self.params = params
        self.prompt = prompt
        self.matcher = None if params.grammar is None else params.grammar.start()
        self.counts: dict[int, int] = {}  # of output tokens, by id
        # Of prompt and output, in order; kept only for the repetition penalty.
        self.seen = dict.fromkeys(prompt) if params.repetition_penalty != 1.0 else {}
        self.prompt_scored = 0  # tokens of the prompt whose scores are known

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows nothing more."""
        return self.matcher is not None and self.matcher.is_complete

    @property
    def wants_prompt_scores(self) -> bool:
        """Whether prompt scores are requested and not complete yet."""
        return self.params.prompt_logprobs is not None and self.prompt_scored < len(self.prompt) - 1

    def accept(self, token: int) -> None:
        """Add an accepted `token`. Raises `GrammarError` if the grammar does not allow it."""
        if self.params.penalizes_output:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.params.repetition_penalty != 1.0:
            self.seen[token] = None
        if self.matcher is not None:
            self.matcher.accept(token)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits to sample from: the request's state, and the index of the new token (0 is the first)."""

    state: TokenState
    index: int

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""
        return self.state.params

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether the result is just the likeliest token of the raw logits."""
        return self.params.is_greedy and not self.params.changes_logits(self.index)

    @property
    def final_token(self) -> int | None:
        """The token that ends the request if no other is possible and its grammar is satisfied; else None."""
        return None if self.state.matcher is None else self.state.matcher.final_token

    @property
    def no_token_left(self) -> str:
        """The message for a row in which no token is possible."""
        causes = ["logit_bias"] if self.params.logit_bias else []
        causes += ["min_tokens"] if self.params.masks_stops(self.index) else []
        causes += ["the grammar"] if self.state.matcher is not None else []
        return f"no token is possible at output position {self.index}: {' and '.join(causes)} together exclude all"
