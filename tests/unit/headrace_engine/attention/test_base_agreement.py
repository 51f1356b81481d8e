"""Every backend gives the logits of a reference that reads the step's data by plain loops over block tables."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from attention_by_loops import LoopBackend

from headrace_core.scheduler.events import ScheduledSeq
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.registry import BACKENDS, needs_of
from headrace_engine.loop.probe import probe
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.model.loading import LoadedModel, wrap_model

# Root mean square, relative to the logits' spread, by the number format of KV blocks. In fp32 the same sums in another
# order. In bf16 such a difference now and then rounds one number of a key the other way; with
# none rounded it would be 0.8 eps.
BOUNDS = {torch.float32: 5e-6, torch.bfloat16: torch.finfo(torch.bfloat16).eps / 20}
BLOCK = 4
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257, "intermediate_size": 64,
    "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 256, "pad_token_id": 0,
}  # fmt: skip
GQA = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
MIXED = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: dict[str, Callable[[], Any]] = {
    "grouped": lambda: transformers.LlamaConfig(**GQA),
    "ungrouped": lambda: transformers.LlamaConfig(**SIZES),
    "window": lambda: transformers.MistralConfig(**GQA, sliding_window=9),
    "window-softcap": lambda: transformers.Gemma2Config(
        **GQA, **MIXED, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "window-sinks": lambda: transformers.GptOssConfig(**GQA, **MIXED, num_local_experts=4, num_experts_per_tok=2),
    "narrow-values": lambda: transformers.DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4}, head_dim=8, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        moe_intermediate_size=16, first_k_dense_replace=1,
    ),
}  # fmt: skip
# Tokens of three requests in each step: prompts from their start, chunks with history, decodes, decodes alone.
STEPS = ((11, 3, 0), (1, 9, 2), (1, 1, 1), (13, 1, 1), (1, 0, 1), (7, 14, 0), (1, 1, 1))


def build(name: str, tokenizer: Any) -> LoadedModel:
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=IMPLEMENTATION)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.25 if parameter.dim() > 1 else 0.1)
        if parameter.dim() == 1:
            parameter.data.add_(1.0)
    return wrap_model(module, tokenizer, name=name)


def logits(model: LoadedModel, backend: AttentionBackend, kv_dtype: torch.dtype) -> torch.Tensor:
    """Logits of all rows of all steps, in scattered blocks full of other sequences' old data."""
    pool = make_pool(probe(model), num_blocks=40, block_size=BLOCK, device=model.device, dtype=kv_dtype)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor.normal_(generator=torch.Generator().manual_seed(2))
    draw = random.Random(5)
    order = draw.sample(range(1, 40), 39)
    texts = [[draw.randrange(257) for _ in range(sum(step[request] for step in STEPS))] for request in range(3)]
    runner, done, found = ModelRunner(model, pool, backend), [0, 0, 0], []
    for counts in STEPS:
        seqs = []
        for request in sorted((one for one in range(3) if counts[one]), key=lambda one: counts[one] > 1):
            start, end = done[request], done[request] + counts[request]
            seqs.append(
                ScheduledSeq(
                    request_id=str(request), start=start, token_ids=tuple(texts[request][start:end]),
                    block_table=tuple(order[request::3]), samples=False, is_prefill=True,
                )
            )  # fmt: skip
            done[request] = end
        found.append(runner.logits(seqs, range(sum(counts))))
    return torch.cat(found).float()


@pytest.mark.parametrize("kv_dtype", BOUNDS)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", CONFIGS)
def test_gives_the_logits_of_plain_loops(
    name: str, backend: AttentionBackend, kv_dtype: torch.dtype, tokenizer: Any
) -> None:
    model = build(name, tokenizer)
    needs = needs_of(
        probe(model), device=model.device, dtype=model.dtype, kv_dtype=kv_dtype, block_size=BLOCK
    )  # fmt: skip
    if backend.abilities.lacks(needs):
        pytest.skip(f"{backend.name} lacks {', '.join(backend.abilities.lacks(needs))}")
    expected = logits(model, LoopBackend(), kv_dtype)
    error = (logits(model, backend, kv_dtype) - expected).pow(2).mean().sqrt() / expected.std()
    assert float(error) <= BOUNDS[kv_dtype]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("grouped", [(None, None, False)] * 2),
        ("window", [(9, None, False)] * 2),
        ("window-softcap", [(9, 2.0, False), (None, 2.0, False)]),
        ("window-sinks", [(9, None, True), (None, None, True)]),
    ],
)
def test_each_layers_rules_reach_the_backend(name: str, rules: list[Any], tokenizer: Any) -> None:
    backend = LoopBackend()
    logits(build(name, tokenizer), backend, torch.float32)
    seen = [(layer.window, layer.softcap, layer.sinks is not None) for layer in backend.seen]
    assert seen == rules * len(STEPS)
