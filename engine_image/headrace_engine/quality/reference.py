"""The reference: plain transformers over the same texts, one request at a time, without paging or chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from headrace_core.observations import Choice, Observed, Tally, TextOutcome
from headrace_engine.model.loading import LoadedModel, dequantizing, wrap_model
from headrace_engine.model.weights import WeightSource
from headrace_engine.quality.passes import Ended, choices, log_likelihoods, spread
from headrace_engine.quality.samples import TokenizedText


def load_plain(source: WeightSource, tokenizer: Any, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The model with transformers' eager attention, which every architecture has. The engine has already loaded it."""
    module: Any = AutoModelForCausalLM.from_pretrained(
        **source.location, attn_implementation="eager", dtype=dtype, **dequantizing(source)
    )
    # A model can come with defaults such as a repetition penalty, which would change the greedy outputs.
    module.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return wrap_model(module.to(device), tokenizer, name=source.name)


@torch.inference_mode()
def observe_plain(
    model: LoadedModel, samples: Sequence[TokenizedText], *, output_tokens: int, ended: Ended
) -> Observed:
    """One forward over each text, and a greedy run from its prompt; `ended` is called after each of the two."""
    outcomes: dict[str, TextOutcome] = {}
    deviations: list[float] = []
    for sample in samples:
        scores = _scores(model, sample)
        ended(sample.name)
        greedy, spreads = _greedy(model, sample, output_tokens)
        ended(sample.name)
        deviations += spreads
        # Entry i is for position i + 1.
        forced = scores[sample.prompt_len - 1 :]
        outcomes[sample.name] = TextOutcome(
            greedy=tuple(greedy), forced=tuple(forced), prompt=tuple(scores), failed=not all(map(math.isfinite, scores))
        )
    return Observed(outcomes=outcomes, spread=math.fsum(deviations) / max(1, len(deviations)), tally=Tally())


def _scores(model: LoadedModel, sample: TokenizedText) -> list[float]:
    ids = torch.tensor([sample.tokens], dtype=torch.long, device=model.device)
    logits = model.module(input_ids=ids, use_cache=False).logits[0, :-1]
    return log_likelihoods(model.of_tokens(logits), sample.tokens[1:])


def _greedy(model: LoadedModel, sample: TokenizedText, count: int) -> tuple[list[Choice], list[float]]:
    """The choices and the spread of each row, from transformers' own `generate` and cache."""
    ids = torch.tensor([sample.prompt], dtype=torch.long, device=model.device)
    no_tokens = list(range(model.vocab_size, model.module.config.get_text_config().vocab_size))
    no_tokens += [] if model.holes is None else model.holes.tolist()
    output = model.module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None,
        pad_token_id=0, suppress_tokens=no_tokens or None, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    rows = model.of_tokens(torch.cat(output.logits))
    return choices(rows, output.sequences[0, ids.shape[1] :].tolist()), spread(rows)
