"""From logits to tokens, for all rows of a step at once.

A sampled token depends on (logits, parameters, seed, index, the request's own tokens) and nothing else, so the same
seed gives the same text whatever else is in the batch and however often it is preempted. The order is that of vLLM:
bias, penalties, masks (`shaping`); temperature; min-p, top-k, top-p; one draw.

The three cuts are thresholds on the probability, so tied tokens are kept or dropped together. Their order after a sort
differs between devices and batch sizes, so the result must not depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headrace_engine.outputs import RequestProblem, RequestProblemKind, TokenScore
from headrace_engine.sampling.logprobs import NOT_NUMBERS, score_rows
from headrace_engine.sampling.row_slices import row_slices
from headrace_engine.sampling.shaping import shape
from headrace_engine.sampling.token_state import Row

LOOKS = (256, 4096)  # numbers of likeliest tokens to try first, since a full sort of the vocabulary costs milliseconds
LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of one row: a token, with its score if requested, or the problem that ends the request."""

    token: int = -1
    score: TokenScore | None = None
    problem: RequestProblem | None = None


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Sampled]:
    """Sample a token from each row of raw `logits [rows, vocabulary]`. A row without a possible token has a problem."""
    best, likeliest = logits.max(-1)
    finite = best.isfinite().tolist()  # NaN and infinity both show in the maximum
    tokens: dict[int, int] = {at: token for at, token in enumerate(likeliest.tolist()) if finite[at]}
    problems = {at: NOT_NUMBERS for at, is_finite in enumerate(finite) if not is_finite}
    shaped = [at for at, row in enumerate(rows) if finite[at] and not row.takes_the_likeliest]
    for part in row_slices(len(shaped), logits):
        places = shaped[part]
        chosen, dead = _choose(logits[places].float(), [rows[at] for at in places])
        tokens.update((places[at], token) for at, token in chosen.items())
        problems.update((places[at], RequestProblem(why, RequestProblemKind.IMPOSSIBLE)) for at, why in dead.items())
    scores = _scores(logits, rows, {at: token for at, token in tokens.items() if at not in problems})
    return [
        Sampled(problem=problems[at]) if at in problems else Sampled(token=tokens[at], score=scores.get(at))
        for at in range(len(rows))
    ]


def _rows(logits: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """These rows; without a copy if they are all rows."""
    return logits if len(places) == len(logits) else logits[places]


def _scores(logits: torch.Tensor, rows: Sequence[Row], tokens: Mapping[int, int]) -> dict[int, TokenScore]:
    """Scores, from the raw logits, of rows that have a token and request logprobs; by row."""
    asking = [at for at in tokens if rows[at].params.logprobs is not None]
    if not asking:
        return {}
    top = [rows[at].params.logprobs or 0 for at in asking]
    return dict(zip(asking, score_rows(_rows(logits, asking), [tokens[at] for at in asking], top=top), strict=True))


def _choose(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[dict[int, int], dict[int, str]]:
    """Tokens of rows that are not plainly greedy, and why others have none; both by row. Changes `logits`."""
    stuck = shape(logits, rows)
    possible = logits.amax(-1).isfinite().tolist()
    tokens, problems = {}, {}
    for at, row in enumerate(rows):
        if possible[at]:
            continue
        if (final := row.final_token) is not None:
            tokens[at] = final
        else:
            problems[at] = stuck.get(at) or row.no_token_left
    greedy = [at for at, row in enumerate(rows) if possible[at] and row.params.is_greedy]
    if greedy:
        tokens.update(zip(greedy, _rows(logits, greedy).argmax(-1).tolist(), strict=True))
    drawn = [at for at, row in enumerate(rows) if possible[at] and not row.params.is_greedy]
    if drawn:
        tokens.update(zip(drawn, _draw(_rows(logits, drawn), [rows[at] for at in drawn]), strict=True))
    return tokens, problems


def uniform(seed: str, index: int) -> float:
    """The number in [0, 1) that decides token `index` (0 is the first generated) of a request."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Draw a token id per row: after temperature and cuts, the one at `uniform` in the weights cumulated by id."""
    temperature = _column([max(row.params.temperature, LOWEST_TEMPERATURE) for row in rows], logits)
    weights = logits.sub_(logits.amax(-1, keepdim=True)).div_(temperature).softmax(-1)
    floor = _floor(weights, rows)
    if floor is not None:
        weights *= weights >= floor
    bounds = weights.cumsum(-1, dtype=torch.float64)
    total = bounds[:, -1:]
    at = torch.tensor([[uniform(row.params.seed, row.index)] for row in rows], dtype=torch.float64).to(total.device)
    # Kept below the total even if the product rounds up, so that a token with weight 0 is never drawn.
    target = torch.minimum(total * at, torch.nextafter(total, torch.zeros_like(total)))
    ids: list[int] = torch.searchsorted(bounds, target, right=True)[:, 0].tolist()
    return ids


def _floor(weights: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor | None:
    """The smallest weight that each row keeps, `[rows, 1]`; None if all rows keep everything."""
    floor = None
    if any(row.params.min_p > 0 for row in rows):
        floor = weights.amax(-1, keepdim=True) * _column([row.params.min_p for row in rows], weights)
    cut = [at for at, row in enumerate(rows) if row.params.top_k > 0 or row.params.top_p < 1.0]
    if not cut:
        return floor
    if floor is None:
        floor = torch.zeros_like(weights[:, :1])
    floor[cut] = _tail_floor(_rows(weights, cut), floor[cut], [rows[at] for at in cut])
    return floor


def _tail_floor(weights: torch.Tensor, floor: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """`floor`, raised to the smallest weight that top-k and top-p of these rows keep."""
    size = weights.shape[-1]
    left = list(range(len(rows)))
    for look in (*(look for look in LOOKS if look < size), size):
        these, own = _rows(weights, left), [rows[at] for at in left]
        ordered = these.topk(look).values if look < size else these.sort(descending=True).values
        raised, sure = _cut(ordered, these, floor[left], own)
        floor[left] = torch.where(sure, raised, floor[left])
        left = [at for at, is_sure in zip(left, sure[:, 0].tolist(), strict=True) if not is_sure]
        if not left:
            break
    return floor


def _cut(
    ordered: torch.Tensor, weights: torch.Tensor, floor: torch.Tensor, rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new floor `[rows, 1]`, from the largest weights in descending order, and whether those were enough."""
    seen = ordered.shape[-1]
    top_k = torch.tensor([[row.params.top_k] for row in rows], device=ordered.device)
    kth = ordered.gather(-1, top_k.clamp(1, seen) - 1)
    floor = torch.where(top_k > 0, torch.maximum(floor, kth), floor)
    # top-p is a share of what min-p and top-k leave.
    total = torch.where(floor > 0, (weights * (weights >= floor)).sum(-1, keepdim=True, dtype=torch.float64), 1.0)
    top_p = _column([row.params.top_p for row in rows], total)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    inside = ((before < top_p * total) & (ordered >= floor)).sum(-1, keepdim=True)
    last = ordered.gather(-1, inside.clamp(min=1) - 1)
    is_cut = top_p < 1.0
    sure = (top_k <= seen) & (~is_cut | (inside < seen)) | (seen == weights.shape[-1])
    return torch.where(is_cut, torch.maximum(floor, last), floor), sure


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
