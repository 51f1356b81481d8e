"""Changes to logits before the temperature: bias, penalties, mask of stop tokens, mask of the grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from headrace_engine.sampling.grammar import fill_masks
from headrace_engine.sampling.token_state import Row

MASKED = float("-inf")
Change = tuple[int, Iterable[int], Iterable[float]]  # row, distinct token ids, a number for each id


def shape(logits: torch.Tensor, rows: Sequence[Row]) -> dict[int, str]:
    """Change `logits [rows, vocabulary]` (fp32) in place. Returns why a row's grammar cannot continue, by row."""
    _apply(logits, _biases(rows), lambda old, bias: old + bias)
    _apply(logits, _repetitions(rows), lambda old, penalty: torch.where(old > 0, old / penalty, old * penalty))
    _apply(logits, _penalties(rows), lambda old, penalty: old - penalty)
    _apply(logits, _early_stops(rows, logits.shape[-1]), lambda old, masked: old + masked)
    return _constrain(logits, rows)


def _biases(rows: Sequence[Row]) -> Iterable[Change]:
    for at, row in enumerate(rows):
        bias = dict(row.params.logit_bias)
        yield at, bias.keys(), bias.values()


def _repetitions(rows: Sequence[Row]) -> Iterable[Change]:
    for at, row in enumerate(rows):
        yield at, row.state.seen, [row.params.repetition_penalty] * len(row.state.seen)


def _penalties(rows: Sequence[Row]) -> Iterable[Change]:
    for at, row in enumerate(rows):
        own, counts = row.params, row.state.counts
        yield at, counts, [own.presence_penalty + own.frequency_penalty * count for count in counts.values()]


def _early_stops(rows: Sequence[Row], vocab_size: int) -> Iterable[Change]:
    for at, row in enumerate(rows):
        if row.params.masks_stops(row.index):
            stops = [token for token in row.params.stop_token_ids if token < vocab_size]
            yield at, stops, [MASKED] * len(stops)


def _apply(
    logits: torch.Tensor, changes: Iterable[Change], change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Replace the logits at the given places, for all rows at once, by `change(old values, numbers)`."""
    where: list[int] = []
    tokens: list[int] = []
    numbers: list[float] = []
    for at, ids, values in changes:
        before = len(tokens)
        tokens.extend(ids)
        numbers.extend(values)
        where.extend([at] * (len(tokens) - before))
    if not tokens:
        return
    place = (torch.tensor(where, device=logits.device), torch.tensor(tokens, device=logits.device))
    logits[place] = change(logits[place], torch.tensor(numbers, dtype=logits.dtype, device=logits.device))


def _constrain(logits: torch.Tensor, rows: Sequence[Row]) -> dict[int, str]:
    matched = [(at, row.state.matcher) for at, row in enumerate(rows) if row.state.matcher is not None]
    if not matched:
        return {}
    words, stuck = fill_masks([matcher for _, matcher in matched], logits.shape[-1])
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (words.to(logits.device).unsqueeze(-1) >> bits & 1).flatten(1)[:, : logits.shape[-1]]
    places = [at for at, _ in matched]
    logits[places] = logits[places].masked_fill_(allowed == 0, MASKED)
    return {places[at]: why for at, why in stuck.items()}
