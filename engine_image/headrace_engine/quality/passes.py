"""Three passes of one engine over the texts, on one scheduler and one KV pool, in this order:

forced  each text's tokens are committed as if they had been sampled: likelihood on the decode path, prompts not cached
greedy  free generation from the same prompts, which can now be in the prefix cache
prompt  whole texts as prompts: likelihood of every token through chunked prefill, nothing read from the cache
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from headrace_core.observations import TOP, Choice, Observed, Tally, TextOutcome
from headrace_core.scheduler.events import StepPlan, StepResult
from headrace_engine.quality.offline import Offline, OfflineRequest, drive
from headrace_engine.quality.samples import TokenizedText

ROWS_AT_ONCE = 64  # rows of log-softmax in float64 at once: limits the memory that a large vocabulary needs
Ended = Callable[[str], None]


def observe(
    engine: Offline, samples: Sequence[TokenizedText], *, concurrency: int, output_tokens: int, ended: Ended
) -> Observed:
    """Run the passes; `ended` is called three times for each text. Raises `SettingsError` if a text does not fit."""
    forced = _Forced(engine, samples)
    greedy = _Greedy(engine)
    prompts = _Prompts(engine, samples)
    plans = (
        (forced.watch, engine.runner, [_job(item, len(item.tokens) - item.prompt_len) for item in samples]),
        (greedy.watch, engine.runner, [_job(item, output_tokens) for item in samples]),
        (prompts.watch, engine.all_rows, [_whole(item) for item in samples]),
    )
    failed: set[str] = set()
    for watch, runner, jobs in plans:
        failed |= drive(engine.scheduler, runner, jobs, concurrency=concurrency, watch=watch, ended=ended)
    outcomes = {
        item.name: TextOutcome(
            greedy=tuple(greedy.found.get(item.name, ())),
            forced=_in_order(forced.found[item.name]),
            prompt=_in_order(prompts.found[item.name]),
            failed=item.name in failed,
        )
        for item in samples
    }
    return Observed(outcomes=outcomes, spread=greedy.spread, tally=_tally(engine))


def log_likelihoods(logits: torch.Tensor, targets: Sequence[int]) -> list[float]:
    """Natural log-probability of `targets[i]` under row i of `logits [rows, vocabulary]`.

    In float64, so that differences between two sides come from their logits and not from this sum.
    """
    found: list[float] = []
    for at in range(0, len(targets), ROWS_AT_ONCE):
        rows = logits[at : at + ROWS_AT_ONCE].double()
        ids = torch.tensor(targets[at : at + ROWS_AT_ONCE], dtype=torch.long, device=rows.device)
        found += (rows.gather(1, ids[:, None])[:, 0] - rows.logsumexp(-1)).tolist()
    return found


def choices(logits: torch.Tensor, taken: Sequence[int]) -> list[Choice]:
    """For each row of `logits [rows, vocabulary]`: the token taken, then the likeliest tokens."""
    rows = logits.float()
    best = rows.topk(min(TOP, rows.shape[-1]))
    ids = torch.tensor(taken, dtype=torch.long, device=rows.device)
    own = rows.gather(1, ids[:, None])[:, 0].tolist()
    return [
        Choice.of(token, logit, zip(others, values, strict=True))
        for token, logit, others, values in zip(taken, own, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def spread(logits: torch.Tensor) -> list[float]:
    """Standard deviation of each row over its tokens, leaving out minus infinity (ids without a token)."""
    rows = logits.float()
    counts = rows.isfinite()
    if bool(counts.all()):
        found: list[float] = rows.std(-1).tolist()
        return found
    return [float(row[mask].std()) for row, mask in zip(rows, counts, strict=True)]


def _job(sample: TokenizedText, max_tokens: int) -> OfflineRequest:
    return OfflineRequest(name=sample.name, prompt=sample.prompt, max_tokens=max_tokens)


def _whole(sample: TokenizedText) -> OfflineRequest:
    # The last token predicts nothing in the text, and the one output token is ignored.
    return OfflineRequest(name=sample.name, prompt=sample.tokens, max_tokens=1, reads_cache=False)


def _tally(engine: Offline) -> Tally:
    stats = engine.scheduler.stats()
    return Tally(
        steps=stats.steps,
        preemptions=stats.preemptions,
        tokens_recomputed=stats.tokens_recomputed,
        cache_hits=stats.cache_hits,
    )


def _in_order(found: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(found[position] for position in sorted(found))


class _Forced:
    """Commits the text's next token whatever the model samples, and records its log-probability."""

    def __init__(self, engine: Offline, samples: Sequence[TokenizedText]) -> None:
        self._runner = engine.runner
        self._tokens = {item.name: item.tokens for item in samples}
        self.found: dict[str, dict[int, float]] = {item.name: {} for item in samples}

    def watch(self, plan: StepPlan, result: StepResult) -> StepResult:
        ends = {seq.request_id: seq.start + seq.num_tokens for seq in plan.seqs if seq.samples}
        if not ends:
            return result
        tokens = {name: self._tokens[name][end] for name, end in ends.items()}
        scores = log_likelihoods(self._runner.seen, list(tokens.values()))
        for (name, end), score in zip(ends.items(), scores, strict=True):
            self.found[name][end] = score
        return replace(result, tokens={name: token for name, token in tokens.items() if name not in result.failed})


class _Greedy:
    """Commits the runner's own tokens, and records each with its likeliest rivals."""

    def __init__(self, engine: Offline) -> None:
        self._runner = engine.runner
        self.found: dict[str, list[Choice]] = {}
        self._deviations: list[float] = []

    @property
    def spread(self) -> float:
        return math.fsum(self._deviations) / max(1, len(self._deviations))

    def watch(self, plan: StepPlan, result: StepResult) -> StepResult:
        sampling = [seq.request_id for seq in plan.seqs if seq.samples]
        rows = [at for at, name in enumerate(sampling) if name not in result.failed]
        if not rows:
            return result
        names = [sampling[at] for at in rows]
        logits = self._runner.seen[rows]
        self._deviations += spread(logits)
        for name, choice in zip(names, choices(logits, [result.tokens[name] for name in names]), strict=True):
            self.found.setdefault(name, []).append(choice)
        return result


class _Prompts:
    """Records the log-probability of every token of each prompt, from all rows of the prefill."""

    def __init__(self, engine: Offline, samples: Sequence[TokenizedText]) -> None:
        self._runner = engine.all_rows
        self._tokens = {item.name: item.tokens for item in samples}
        self.found: dict[str, dict[int, float]] = {item.name: {} for item in samples}

    def watch(self, plan: StepPlan, result: StepResult) -> StepResult:
        rows, where, row = [], [], 0
        for seq in plan.seqs:
            tokens = self._tokens[seq.request_id]
            for position in range(seq.start + 1, seq.start + seq.num_tokens + 1):
                if position < len(tokens):
                    rows.append(row)
                    where.append((seq.request_id, position))
                row += 1
        targets = [self._tokens[name][position] for name, position in where]
        scores = log_likelihoods(self._runner.rows[rows], targets)
        for (name, position), score in zip(where, scores, strict=True):
            self.found[name][position] = score
        return result
