"""Log-probabilities in the shapes of OpenAI's two APIs and of vLLM's `prompt_logprobs`. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from headrace_engine.outputs import TokenScore
from headrace_engine.text.token_text import TokenTexts

Scored = tuple[int, TokenScore | None]  # token id and score; a prompt's first token has none


def scored_prompt(ids: Sequence[int], scores: Sequence[TokenScore | None]) -> list[Scored]:
    """The tokens of a prompt with their scores."""
    return list(zip(ids, scores, strict=True))


def scored_output(scores: Iterable[TokenScore]) -> list[Scored]:
    """Generated tokens with their scores."""
    return [(score.token_id, score) for score in scores]


def in_chat(scores: Iterable[TokenScore], texts: TokenTexts, *, top: int) -> dict[str, Any]:
    """`logprobs` of a chat's choice. All `bytes` joined give the text; a special token such as EOS has none."""
    content = [
        _chat_entry(score.token_id, score.logprob, texts)
        | {"top_logprobs": [_chat_entry(token, logprob, texts) for token, logprob in score.top[:top]]}
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _chat_entry(token: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    as_bytes = None if texts.is_special(token) else list(texts.bytes_of(token))
    return {"token": texts.text_of(token), "logprob": logprob, "bytes": as_bytes}


class CompletionScores:
    """`logprobs` of a completion's choice, piece by piece: offsets continue from one piece to the next."""

    def __init__(self, texts: TokenTexts, *, top: int) -> None:
        self._texts = texts
        self._top = top
        self._offset = 0  # in characters of the text
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """The `logprobs` of the next tokens."""
        return {
            "tokens": [self._texts.name_of(token) for token, _ in scored],
            "token_logprobs": [score and score.logprob for _, score in scored],
            "top_logprobs": [score and self._best(score) for _, score in scored],
            "text_offset": [self._place(token) for token, _ in scored],
        }

    def _best(self, score: TokenScore) -> dict[str, float]:
        best: dict[str, float] = {}
        # The token itself is always included; of two with the same name, the likelier is kept.
        for token, logprob in (*score.top[: self._top], (score.token_id, score.logprob)):
            best.setdefault(self._texts.name_of(token), logprob)
        return best

    def _place(self, token: int) -> int:
        before = self._offset
        if not self._texts.is_special(token):
            self._offset += len(self._characters.decode(self._texts.bytes_of(token)))
        return before


def of_prompt(scored: Sequence[Scored], texts: TokenTexts, *, top: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs`: at each position of the prompt, its token and the likeliest ones, by token id."""
    return [None if score is None else _by_id(score, texts, top) for _, score in scored]


def _by_id(score: TokenScore, texts: TokenTexts, top: int) -> dict[str, Any]:
    ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(score.top[:top], 1)]
    own = (score.token_id, score.logprob, score.rank)
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": texts.text_of(token)}
        for token, logprob, rank in (own, *(item for item in ranked if item[0] != score.token_id))
    }
