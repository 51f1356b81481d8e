"""StepPlan -> StepOutput: one forward pass over all rows of a step, then one token for each sequence that samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace_core.scheduler.events import ScheduledSeq, StepPlan, StepResult
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.kv_cache import KvPool, copy_blocks
from headrace_engine.attention.step import SequenceRows, make_step
from headrace_engine.model.loading import LoadedModel
from headrace_engine.outputs import RequestProblem, TokenScore
from headrace_engine.sampling.logprobs import score_rows
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import Sampled, sample
from headrace_engine.sampling.token_state import Row, TokenState

log = logging.getLogger(__name__)


class CopyError(RuntimeError):
    """Copying KV blocks failed: no sequence of the step can be trusted to have the right keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput(StepResult):
    """A step's result, with fields that the scheduler does not need, each by request id.

    `scores`: of the sampled token, if asked for. `prompt_scores`: of the prompt tokens that this step computed, in
    order, to be appended to those of earlier steps. `problems`: why each request in `failed` failed.
    """

    scores: Mapping[str, TokenScore] = field(default_factory=dict)
    prompt_scores: Mapping[str, tuple[TokenScore, ...]] = field(default_factory=dict)
    problems: Mapping[str, RequestProblem] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _PromptRows:
    """Rows `first ..` of a step whose logits score the prompt tokens `tokens` of a sequence."""

    request_id: str
    top: int
    first: int
    tokens: Sequence[int]

    @property
    def rows(self) -> range:
        """The rows' indices in the step."""
        return range(self.first, self.first + len(self.tokens))


class ModelRunner:
    """Runs steps of one model over one KV pool, with one attention backend. Used by one thread."""

    def __init__(self, model: LoadedModel, pool: KvPool, backend: AttentionBackend) -> None:
        self.model = model
        self.pool = pool
        self.backend = backend

    @torch.inference_mode()
    def run(self, plan: StepPlan, requests: Mapping[str, TokenState | SamplingParams]) -> StepOutput:
        """Run one step. Nothing in `requests` changes.

        `requests` has an entry for each sequence that samples or wants its prompt scored; parameters alone are enough
        if they need no tokens. A request whose logits are not numbers, or whose sampling raises, fails alone. Raises
        `CopyError`, and whatever the forward raises.
        """
        try:
            copy_blocks(self.pool, plan.copies)
        except Exception as error:
            raise CopyError(f"copying {len(plan.copies)} KV blocks failed: {type(error).__name__}: {error}") from error
        states = {name: _state(given) for name, given in requests.items()}
        problems: dict[str, RequestProblem] = {}
        scored = _prompt_rows(plan.seqs, states, problems)
        logits = self.logits(plan.seqs, [row for part in scored for row in part.rows])
        sampling = [seq for seq in plan.seqs if seq.samples]
        rows = [_row(seq, states[seq.request_id]) for seq in sampling]
        sampled = dict(zip((seq.request_id for seq in sampling), _sample(logits[: len(rows)], rows), strict=True))
        prompt_scores = _score_prompts(logits[len(rows) :], scored, problems)
        problems |= {name: one.problem for name, one in sampled.items() if one.problem is not None}
        return StepOutput(
            tokens={name: one.token for name, one in sampled.items() if name not in problems},
            failed=frozenset(problems),
            scores={name: one.score for name, one in sampled.items() if one.score is not None},
            prompt_scores=prompt_scores,
            problems=problems,
        )

    @torch.inference_mode()
    def logits(self, seqs: Sequence[ScheduledSeq], also: Sequence[int] = ()) -> torch.Tensor:
        """Logits `[sampling sequences + len(also), vocabulary of the tokenizer]`.

        First one row for each sequence that samples, in the order of `seqs`; then the step's rows `also`.
        """
        computed = [seq for seq in seqs if seq.fork_of is None]
        step = make_step([SequenceRows(seq.start, seq.num_tokens, seq.block_table) for seq in computed], self.pool)
        ids = [token for seq in computed for token in seq.token_ids]
        kept, places = _rows_to_keep(seqs)
        device = self.model.device
        wanted = torch.tensor([*kept, *also], dtype=torch.long, device=device)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([ids], dtype=torch.long, device=device),
            "position_ids": step.positions.unsqueeze(0),
            "use_cache": False,
            "headrace_step": self.backend.prepare(step, self.pool),
        }
        if self.model.keeps_logits:
            inputs["logits_to_keep"] = wanted
        logits: torch.Tensor = self.model.module(**inputs).logits[0]
        if not self.model.keeps_logits:
            logits = logits[wanted]
        logits = self.model.of_tokens(logits)
        if len(places) == len(kept):
            return logits
        return logits[[*places, *range(len(kept), len(kept) + len(also))]]


def _state(given: TokenState | SamplingParams) -> TokenState:
    return given if isinstance(given, TokenState) else TokenState(given)


def _rows_to_keep(seqs: Sequence[ScheduledSeq]) -> tuple[list[int], list[int]]:
    """The step's rows that are sampled from, each once; and for each sampling sequence the index of its row there."""
    kept: list[int] = []
    places: list[int] = []
    place_of: dict[str, int] = {}
    row = -1
    for seq in seqs:
        row += seq.num_tokens
        if not seq.samples:
            continue
        if seq.fork_of is None:
            place_of[seq.request_id] = len(kept)
            kept.append(row)
        places.append(place_of[seq.fork_of or seq.request_id])
    return kept, places


def _row(seq: ScheduledSeq, state: TokenState) -> Row:
    return Row(state, seq.start + seq.num_tokens - state.params.prompt_len)


def _sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Sampled]:
    """Sample all rows; if that raises, one by one, so that only the culprit fails."""
    if not rows:
        return []
    try:
        return sample(logits, rows)
    except Exception:
        log.exception("sampling %d rows failed; trying one by one", len(rows))
    return [_sample_one(logits[at : at + 1], row) for at, row in enumerate(rows)]


def _sample_one(logits: torch.Tensor, row: Row) -> Sampled:
    try:
        return sample(logits, [row])[0]
    except Exception as error:
        return Sampled(problem=RequestProblem(f"sampling failed: {type(error).__name__}: {error}"))


def _prompt_rows(
    seqs: Sequence[ScheduledSeq], states: Mapping[str, TokenState], problems: dict[str, RequestProblem]
) -> list[_PromptRows]:
    """The rows that score prompt tokens without a score yet. The row at position p scores the token at p + 1."""
    found = []
    row = 0
    for seq in seqs:
        state = states.get(seq.request_id)
        if state is not None and seq.num_tokens and state.wants_prompt_scores:
            begin, end = state.prompt_scored, min(seq.start + seq.num_tokens, len(state.prompt) - 1)
            if seq.start > begin:
                problems[seq.request_id] = RequestProblem(
                    f"the prompt's scores from position {begin} on were skipped by a cache hit: a request with "
                    "prompt_logprobs must be submitted with reads_cache=False"
                )
            elif begin < end:
                tokens = state.prompt[begin + 1 : end + 1]
                top = state.params.prompt_logprobs or 0
                found.append(_PromptRows(seq.request_id, top, row + begin - seq.start, tokens))
        row += seq.num_tokens
    return found


def _score_prompts(
    logits: torch.Tensor, parts: Sequence[_PromptRows], problems: dict[str, RequestProblem]
) -> dict[str, tuple[TokenScore, ...]]:
    scores = {}
    at = 0
    for part in parts:
        end = at + len(part.tokens)
        try:
            scored = score_rows(logits[at:end], part.tokens, top=[part.top] * len(part.tokens))
            scores[part.request_id] = tuple(scored)
        except Exception as error:
            log.exception("scoring a prompt failed", extra={"request_id": part.request_id})
            problems[part.request_id] = RequestProblem(f"scoring the prompt failed: {error}")
        at = end
    return scores
