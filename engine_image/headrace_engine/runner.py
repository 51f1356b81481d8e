"""StepPlan -> StepResult: one forward pass over all rows of a step, then one token for each sequence that samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headrace_core.events import ScheduledSeq, StepPlan, StepResult
from headrace_engine.attention import Span, make_step
from headrace_engine.kv_cache import KvPool
from headrace_engine.model import LoadedModel
from headrace_engine.sampling import SamplingParams, sample


class Runner:
    """Runs steps of one model over one KV pool. Used by one thread."""

    def __init__(self, model: LoadedModel, pool: KvPool) -> None:
        self.model = model
        self.pool = pool

    @torch.inference_mode()
    def run(self, plan: StepPlan, params: Mapping[str, SamplingParams]) -> StepResult:
        """Run one step. `params` has an entry for each sequence that samples. A row of NaN fails its request alone."""
        logits = self.logits(plan.seqs)
        sampling = [seq for seq in plan.seqs if seq.samples]
        if not sampling:
            return StepResult(tokens={})
        best, likeliest = logits.max(dim=-1)
        broken = best.isnan().tolist()
        tokens = dict(zip((seq.request_id for seq in sampling), likeliest.tolist(), strict=True))
        for row, seq in enumerate(sampling):
            own = params[seq.request_id]
            if not own.is_greedy and not broken[row]:
                index = seq.start + seq.num_tokens - own.prompt_len
                tokens[seq.request_id] = sample(logits[row], own, index)
        failed = frozenset(seq.request_id for seq, bad in zip(sampling, broken, strict=True) if bad)
        return StepResult(tokens={name: token for name, token in tokens.items() if name not in failed}, failed=failed)

    @torch.inference_mode()
    def logits(self, seqs: Sequence[ScheduledSeq]) -> torch.Tensor:
        """Logits `[sampling sequences, vocabulary of the tokenizer]`, in the order of `seqs`."""
        step = make_step([Span(seq.start, seq.num_tokens, seq.block_table) for seq in seqs], self.pool)
        ids = [token for seq in seqs for token in seq.token_ids]
        last, row = [], -1
        for seq in seqs:
            row += seq.num_tokens
            if seq.samples:
                last.append(row)
        device = self.model.device
        kept = torch.tensor(last, dtype=torch.long, device=device)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([ids], dtype=torch.long, device=device),
            "position_ids": step.positions.unsqueeze(0),
            "use_cache": False,
            "headrace_step": step,
        }
        if self.model.keeps_logits:
            inputs["logits_to_keep"] = kept
        logits: torch.Tensor = self.model.module(**inputs).logits[0]
        if not self.model.keeps_logits:
            logits = logits[kept]
        return logits[:, : self.model.vocab_size]
