"""Sampling parameters of one request."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.sampling.grammar import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. The defaults are greedy and leave the logits unchanged.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 keep every token. The repetition penalty divides (or
    multiplies, below 0) the logits of prompt and output tokens, as in transformers; the other two subtract from those
    of output tokens only, as in OpenAI's API. `logit_bias` holds (token id, addend). `stop_token_ids` can't be sampled
    before `min_tokens` tokens. `logprobs` and `prompt_logprobs` are how many of the likeliest tokens to report besides
    the token itself; None reports nothing. The caller has checked all ranges, and that ids are in the vocabulary.
    """

    prompt_len: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: str = "0"
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def penalizes_output(self) -> bool:
        """Whether tokens of the output become less likely (or more, if negative)."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_tokens(self) -> bool:
        """Whether sampling depends on the request's own tokens, or on its prompt's."""
        asks = self.grammar is not None or self.prompt_logprobs is not None
        return asks or self.penalizes_output or self.repetition_penalty != 1.0

    def changes_logits(self, index: int) -> bool:
        """Whether anything besides temperature and cuts changes the logits of token `index`."""
        return (
            bool(self.logit_bias)
            or self.repetition_penalty != 1.0
            or self.penalizes_output
            or self.grammar is not None
            or self.masks_stops(index)
        )

    def masks_stops(self, index: int) -> bool:
        """Whether token `index` must not end the request."""
        return index < self.min_tokens and bool(self.stop_token_ids)

    def check_ids(self, vocab_size: int) -> None:
        """Raise `ValueError` for a biased token outside the vocabulary, which on a GPU would crash the process."""
        outside = next((token for token, _ in self.logit_bias if not 0 <= token < vocab_size), None)
        if outside is not None:
            raise ValueError(f"logit_bias holds token id {outside}; the vocabulary is 0 to {vocab_size - 1}")
