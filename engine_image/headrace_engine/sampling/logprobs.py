"""Log-probabilities under the model's raw logits.

Every number is finite: JSON has no infinity, and strict clients would fail to parse the whole answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from headrace_engine.outputs import RequestProblem, RequestProblemKind, TokenScore
from headrace_engine.sampling.row_slices import row_slices

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, as in vLLM
NOT_NUMBERS = RequestProblem("the model's logits are not numbers for this request", RequestProblemKind.NOT_NUMBERS)


class NotNumbersError(ValueError):
    """The logits of a row to be scored contain NaN."""


def score_rows(logits: torch.Tensor, tokens: Sequence[int], *, top: Sequence[int]) -> list[TokenScore]:
    """Score `tokens[i]` and the `top[i]` likeliest under row i of `logits [rows, vocabulary]`, in slices of rows.

    Raises `NotNumbersError`.
    """
    parts = row_slices(len(tokens), logits)
    return [score for part in parts for score in _score(logits[part], tokens[part], top[part])]


def _score(logits: torch.Tensor, tokens: Sequence[int], top: Sequence[int]) -> list[TokenScore]:
    logprobs = logits.float().log_softmax(-1).clamp_(min=LOWEST_LOGPROB)
    own = logprobs.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = (logprobs > own).sum(-1).add_(1).tolist()
    values = own[:, 0].tolist()
    if any(math.isnan(value) for value in values):
        raise NotNumbersError(str(NOT_NUMBERS))
    likeliest = _likeliest(logprobs, max(top))
    return [
        TokenScore(token_id=token, logprob=value, rank=rank, top=tuple(best[:count]))
        for token, value, rank, best, count in zip(tokens, values, ranks, likeliest, top, strict=True)
    ]


def _likeliest(logprobs: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    """(token id, logprob) of each row's `count` likeliest, best first; ids rise where logprobs tie."""
    if count == 0:
        return [[]] * len(logprobs)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [sorted(zip(*row, strict=True), key=lambda pair: (-pair[1], pair[0])) for row in rows]
