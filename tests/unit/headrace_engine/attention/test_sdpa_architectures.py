"""Chunked and batched logits equal a plain forward of each request alone, for every architecture and number format.

The bounds are relative to the spread (standard deviation) of the plain logits. In fp32 both sides compute the same
sums in another order, so they differ by a few units in the last place (2**-24 each) that grow with depth. In bf16 each
rounds its own way, so the right reference is fp32: ours may be as far from it as transformers' own bf16 is, and half
as much again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers

from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.attention.step import SequenceRows, make_step
from headrace_engine.loop.probe import probe
from headrace_engine.model.checks import refuse_unsupported
from headrace_engine.model.loading import LoadedModel, wrap_model

FP32_BOUND = 2e-5
BF16_RATIO = 1.5
KV_BOUND = 2.0  # in units of the format's rounding; seen: 0.8
BLOCK = 4
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257}
GQA = SMALL | {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "max_position_embeddings": 512}
WINDOWED = GQA | {"sliding_window": 9}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**GQA),
    "llama-mqa-wide-heads": lambda: transformers.LlamaConfig(**GQA | {"num_key_value_heads": 1, "head_dim": 24}),
    "llama-tied-biased": lambda: transformers.LlamaConfig(**GQA, tie_word_embeddings=True, attention_bias=True),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **GQA,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn": lambda: transformers.Qwen3Config(
        **GQA, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    ),
    "qwen2-sliding-by-layer": lambda: transformers.Qwen2Config(
        **{key: value for key, value in WINDOWED.items() if key != "head_dim"}, use_sliding_window=True,
        max_window_layers=1,
    ),
    "qwen3": lambda: transformers.Qwen3Config(**GQA),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **GQA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "mistral-sliding": lambda: transformers.MistralConfig(**WINDOWED),
    "mixtral": lambda: transformers.MixtralConfig(**GQA, **EXPERTS),
    "gemma2-softcap-sliding": lambda: transformers.Gemma2Config(**WINDOWED, **MIXED, query_pre_attn_scalar=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**WINDOWED, **MIXED, query_pre_attn_scalar=8),
    "phi3": lambda: transformers.Phi3Config(
        **{key: value for key, value in GQA.items() if key != "head_dim"}, pad_token_id=0
    ),
    "olmo2": lambda: transformers.Olmo2Config(**{key: value for key, value in GQA.items() if key != "head_dim"}),
    "granite": lambda: transformers.GraniteConfig(
        **GQA, attention_multiplier=0.2, residual_multiplier=0.5, embedding_multiplier=3.0, logits_scaling=2.0
    ),
    "smollm3-nope": lambda: transformers.SmolLM3Config(**GQA, no_rope_layers=[1, 0], pad_token_id=0),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**SMALL, intermediate_size=64, max_position_embeddings=512),
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=257, n_positions=512),
    "opt": lambda: transformers.OPTConfig(
        **SMALL, ffn_dim=64, max_position_embeddings=512, word_embed_proj_dim=32, pad_token_id=1
    ),
    "gpt-oss-sinks-sliding": lambda: transformers.GptOssConfig(**WINDOWED, **MIXED, **EXPERTS),
    "afmoe-mask-by-keyword": lambda: transformers.AfmoeConfig(
        **WINDOWED, **MIXED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, num_dense_layers=1
    ),
    "glm4": lambda: transformers.Glm4Config(**GQA, pad_token_id=0),
    "cohere2": lambda: transformers.Cohere2Config(
        **{key: value for key, value in WINDOWED.items() if key != "head_dim"}, **MIXED
    ),
    "deepseek-v3-latent": lambda: transformers.DeepseekV3Config(**GQA | LATENT),
}  # fmt: skip
ENDS = {"bos_token_id": 0, "eos_token_id": 256, "pad_token_id": 0}
# Tokens of each request in each step: chunks of many sizes, single tokens that are decodes, steps of one request alone.
STEPS = ((11, 3, 0), (1, 9, 2), (1, 1, 1), (13, 1, 1), (1, 0, 1), (17, 14, 0), (1, 1, 1))


def build(name: str, tokenizer: Any, dtype: torch.dtype = torch.float32) -> LoadedModel:
    config = CONFIGS[name]()
    for key, value in ENDS.items():
        setattr(config, key, value)
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.25)  # attention that is far from uniform
        else:
            parameter.data.normal_(std=0.1).add_(1.0 if name not in ("gemma2-softcap-sliding", "gemma3") else 0.0)
    return wrap_model(module.to(dtype), tokenizer, name=name)


def texts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(3)
    lengths = [sum(step[request] for step in STEPS) for request in range(3)]
    return [torch.randint(0, 257, (length,), generator=draw).tolist() for length in lengths]


def plain(module: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits `[tokens, vocabulary]` of one request alone, with transformers' own attention."""
    module.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            logits: torch.Tensor = module(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    finally:
        module.set_attn_implementation(IMPLEMENTATION)
    return logits.float()


@torch.inference_mode()
def paged(model: LoadedModel, rows: Sequence[Sequence[int]], *, kv_dtype: torch.dtype) -> list[torch.Tensor]:
    """The same logits for all requests together, by `STEPS`, in scattered blocks."""
    pool = make_pool(probe(model), num_blocks=64, block_size=BLOCK, device=model.device, dtype=kv_dtype)
    order = torch.randperm(63, generator=torch.Generator().manual_seed(5)).add(1).tolist()
    tables = [tuple(order[request::3]) for request in range(3)]
    done = [0, 0, 0]
    found: list[list[torch.Tensor]] = [[], [], []]
    for counts in STEPS:
        # Decodes first, as the scheduler plans them.
        turn = sorted((request for request in range(3) if counts[request]), key=lambda request: counts[request] > 1)
        ids = [token for one in turn for token in rows[one][done[one] : done[one] + counts[one]]]
        step = make_step([SequenceRows(done[one], counts[one], tables[one]) for one in turn], pool)
        logits = model.module(
            input_ids=torch.tensor([ids]),
            position_ids=step.positions[None],
            use_cache=False,
            headrace_step=SdpaBackend().prepare(step, pool),
        ).logits[0]
        for one, part in zip(turn, logits.split([counts[one] for one in turn]), strict=True):
            found[one].append(part.float())
            done[one] += counts[one]
    return [torch.cat(parts) for parts in found]


def largest(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    spread = float(torch.cat(list(other)).std())
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / spread


def rms(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    reference = torch.cat(list(other))
    return float((torch.cat(list(one)) - reference).pow(2).mean().sqrt() / reference.std())


@pytest.mark.parametrize("name", CONFIGS)
def test_chunked_and_batched_equals_plain_in_fp32(name: str, tokenizer: Any) -> None:
    model = build(name, tokenizer)
    refuse_unsupported(model.module.config)
    rows = texts()
    reference = [plain(model.module, row) for row in rows]
    error = largest(paged(model, rows, kv_dtype=torch.float32), reference)
    assert error <= FP32_BOUND


@pytest.mark.parametrize("name", CONFIGS)
def test_in_bf16_ours_is_as_close_to_fp32_as_transformers_own(name: str, tokenizer: Any) -> None:
    model = build(name, tokenizer, torch.bfloat16)
    exact = build(name, tokenizer)
    exact.module.load_state_dict(model.module.state_dict())  # the same rounded weights, computed in fp32
    rows = texts()
    reference = [plain(exact.module, row) for row in rows]
    own = rms([plain(model.module, row) for row in rows], reference)
    error = rms(paged(model, rows, kv_dtype=torch.bfloat16), reference)
    assert error <= BF16_RATIO * own


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma2-softcap-sliding", "gpt-oss-sinks-sliding", "deepseek-v3-latent"])
def test_kv_blocks_of_another_format_cost_their_rounding(name: str, kv_dtype: torch.dtype, tokenizer: Any) -> None:
    model = build(name, tokenizer)
    rows = texts()
    error = rms(paged(model, rows, kv_dtype=kv_dtype), [plain(model.module, row) for row in rows])
    assert 0 < error <= KV_BOUND * torch.finfo(kv_dtype).eps


def test_chunk_borders_change_only_the_order_of_sums_with_rounded_kv(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gemma3", tokenizer)
    rows = texts()
    error = []
    for steps in (STEPS, tuple(zip(*((len(row),) for row in rows), strict=True))):
        monkeypatch.setitem(globals(), "STEPS", steps)
        error.append(paged(model, rows, kv_dtype=torch.bfloat16))
    assert largest(error[0], error[1]) <= FP32_BOUND
