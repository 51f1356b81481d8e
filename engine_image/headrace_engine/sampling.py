"""From logits to a token. Stateless: a sampled token depends on (logits, parameters, seed, index) and nothing else,

so the same seed gives the same text whatever runs beside it and however often it was preempted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

NUCLEUS_FIRST_LOOK = 1024  # most nuclei are smaller: a full sort of the vocabulary costs milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request samples. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 do nothing."""

    prompt_len: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: str = "0"

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0.0 or self.top_k == 1


def uniform(seed: str, index: int) -> float:
    """The number in [0, 1) that decides token `index` (0 is the first generated) of a request."""
    return random.Random(f"{seed}/{index}").random()  # noqa: S311  (reproducible on purpose)


def sample(logits: torch.Tensor, params: SamplingParams, index: int) -> int:
    """One token id from one row of logits `[vocabulary]`."""
    if params.is_greedy:
        return int(logits.argmax())
    scaled = logits.float() / max(params.temperature, 1e-5)
    probabilities = (scaled - scaled.max()).softmax(-1)
    at = uniform(params.seed, index)
    if params.top_k == 0 and params.top_p >= 1.0:
        return _draw(probabilities, at)
    kept, ids = _nucleus(probabilities, params)
    return int(ids[_draw(kept, at)])


def _nucleus(probabilities: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` likeliest, of these the fewest whose sum reaches `top_p`; likeliest first."""
    size = probabilities.numel()
    count = min(params.top_k or NUCLEUS_FIRST_LOOK, size)
    kept, ids = probabilities.topk(count)
    if params.top_k == 0 and count < size and float(kept.sum()) < params.top_p:
        kept, ids = probabilities.sort(descending=True)
    total = float(kept.sum()) if params.top_k else 1.0
    before = kept.double().cumsum(-1) - kept
    inside = max(1, int((before < params.top_p * total).sum()))
    return kept[:inside], ids[:inside]


def _draw(weights: torch.Tensor, at: float) -> int:
    """Index at share `at` of the cumulative weights."""
    bounds = weights.double().cumsum(-1)
    chosen = int(torch.searchsorted(bounds, bounds[-1:] * at, right=True))
    return min(chosen, weights.numel() - 1)
