"""The probe refuses, by name, architectures and backends that would answer nonsense."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from attention_by_loops import LoopBackend

from headrace_engine.attention import registry
from headrace_engine.attention.base import AttentionStep
from headrace_engine.attention.features import Feature
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import KvPool
from headrace_engine.errors import ModelError
from headrace_engine.loop.probe import probe
from headrace_engine.model.checks import refuse_unsupported
from headrace_engine.model.loading import LoadedModel, wrap_model

SIZES = {
    "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 256,
}  # fmt: skip


RECURRENT = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2}


def build(config: Any, tokenizer: Any, dtype: torch.dtype = torch.float32) -> LoadedModel:
    torch.manual_seed(7)
    made = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=IMPLEMENTATION)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.25)  # attention that is far from uniform
    return wrap_model(made.to(dtype), tokenizer, name="tiny")


def test_learns_the_kv_shape_of_each_layer(tiny: Any) -> None:
    shapes = probe(tiny("llama"))
    assert {index: (one.kv_heads, one.key_dim, one.value_dim) for index, one in shapes.items()} == {
        0: (2, 8, 8),
        1: (2, 8, 8),
    }


def test_refuses_an_architecture_that_bypasses_the_hook(tokenizer: Any) -> None:
    config = transformers.BloomConfig(vocab_size=257, hidden_size=32, n_layer=2, n_head=4)
    refuse_unsupported(config)
    with pytest.raises(ModelError, match=r"BloomForCausalLM bypasses .*Use another model"):
        probe(build(config, tokenizer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_refuses_wrong_attention(dtype: torch.dtype, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(transformers.LlamaConfig(**SIZES), tokenizer, dtype)
    monkeypatch.setattr(model.module.model.layers[1].self_attn, "scaling", 3.0)
    probe(model)  # the same on both sides is fine
    real = torch.nn.functional.scaled_dot_product_attention

    def doubled(*given: Any, scale: float, **more: Any) -> torch.Tensor:
        return real(*given, scale=scale * 2, **more)

    monkeypatch.setattr("headrace_engine.attention.sdpa.scaled_dot_product_attention", doubled)
    with pytest.raises(ModelError, match="LlamaForCausalLM computes different logits"):
        probe(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [None, torch.float32, torch.bfloat16, torch.float16])
def test_runs_with_the_number_format_of_kv_blocks(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, tokenizer: Any
) -> None:
    probe(build(transformers.LlamaConfig(**SIZES), tokenizer, dtype), kv_dtype=kv_dtype)


def test_numbers_too_large_for_the_kv_format_are_not_reported_as_wrong_attention(tokenizer: Any) -> None:
    model = build(transformers.LlamaConfig(**SIZES), tokenizer)
    with torch.no_grad():
        model.module.model.layers[0].self_attn.v_proj.weight.mul_(1e6)
        model.module.model.layers[0].self_attn.o_proj.weight.div_(1e6)
    probe(model, kv_dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"NaN in float32 with KV blocks in float16: .*--kv-cache-dtype auto"):
        probe(model, kv_dtype=torch.float16)


def test_numbers_too_large_for_the_model_dtype_are_named(tokenizer: Any) -> None:
    model = build(transformers.LlamaConfig(**SIZES), tokenizer, torch.float16)
    with torch.no_grad():
        model.module.model.layers[0].mlp.down_proj.weight.fill_(60_000)
    with pytest.raises(ModelError, match=r"NaN in float16: .*--dtype bfloat16"):
        probe(model)


@pytest.mark.parametrize(
    ("window", "words"), [(None, "sliding window"), (8, "needs a different mask"), (10, "the last 10 keys")]
)
def test_refuses_a_layer_whose_window_differs_from_its_mask(
    window: int | None, words: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A probe of 11 tokens cannot reach a window of thousands: the mask is evaluated at distances instead.
    config = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=9, head_dim=8, layer_types=["full_attention", "sliding_attention"]
    )
    model = build(config, tokenizer)
    probe(model)
    monkeypatch.setattr(model.module.model.layers[1].self_attn, "sliding_window", window)
    with pytest.raises(ModelError, match=words):
        probe(model)


def test_refuses_a_mask_that_is_not_causal(tokenizer: Any) -> None:
    config = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=9, head_dim=8, layer_types=["full_attention"] * 2, use_bidirectional_attention=True
    )
    with pytest.raises(ModelError, match="layer 0 of Gemma3ForCausalLM needs a different mask"):
        probe(build(config, tokenizer))


def test_refuses_chunked_attention() -> None:
    config = transformers.Llama4TextConfig(**SIZES, num_local_experts=2, intermediate_size_mlp=64)
    with pytest.raises(ModelError, match="chunked_attention"):
        refuse_unsupported(config)


def test_refuses_layers_that_keep_other_state() -> None:
    config = transformers.LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        refuse_unsupported(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: transformers.MambaConfig(**RECURRENT), "mamba keeps a recurrent state"),
        (lambda: transformers.Mamba2Config(**RECURRENT, num_heads=2, head_dim=32), "mamba2 keeps a recurrent state"),
        (lambda: transformers.JambaConfig(**SIZES), "jamba keeps a recurrent state"),
        (lambda: transformers.RwkvConfig(**RECURRENT), "rwkv keeps a recurrent state"),
        (lambda: transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]), "layers of type conv"),
        (lambda: transformers.Qwen3NextConfig(**SIZES), "qwen3_next keeps a recurrent state"),
        (lambda: transformers.FalconConfig(**RECURRENT, num_attention_heads=4),
         "falcon does not take its attention from transformers' attention interface"),
        (transformers.Gemma3Config, "gemma3 is a multimodal model"),
        (transformers.Qwen2VLConfig, "qwen2_vl is a multimodal model"),
        (transformers.Qwen3VLConfig, "qwen3_vl is a multimodal model"),
        (transformers.Mistral3Config, "mistral3 is a multimodal model"),
        (transformers.T5Config, "t5 .*is not a causal language model"),
        (transformers.ViTConfig, "vit"),
    ],
)  # fmt: skip
def test_refuses_by_name_before_any_weight_is_read(config: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words) as refused:
        refuse_unsupported(config())
    assert "Use " in str(refused.value)


def test_refuses_positions_of_several_axes() -> None:
    config = transformers.Qwen3Config(**SIZES)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    with pytest.raises(ModelError, match=r"qwen3 is a multimodal model \(M-RoPE\)"):
        refuse_unsupported(config)


def test_refuses_an_encoder(tokenizer: Any) -> None:
    config = transformers.BertConfig(**{key: value for key, value in SIZES.items() if key != "num_key_value_heads"})
    with pytest.raises(ModelError, match="BertLMHeadModel"):
        probe(build(config, tokenizer))


# Attention backends


def features(model: LoadedModel) -> list[set[Feature]]:
    return [set(shape.features) for _, shape in sorted(probe(model).items())]


def test_learns_the_features_that_each_layer_needs_of_a_backend(tiny: Any) -> None:
    grouped, window = Feature.GROUPED_QUERIES, Feature.WINDOW
    assert features(tiny("gpt_neox")) == [set(), set()]
    assert features(tiny("llama")) == [{grouped}, {grouped}]
    assert features(tiny("gemma3")) == [{grouped, window}, {grouped}]
    assert features(tiny("gemma2-softcap"))[1] == {grouped, Feature.SOFTCAP}
    assert features(tiny("gpt-oss-sinks")) == [{grouped, window, Feature.SINKS}, {grouped, Feature.SINKS}]


@pytest.mark.parametrize("sizes", [{4, 16}, {8}, {16}])
def test_tries_the_backend_that_will_serve_in_block_sizes_that_it_supports(
    sizes: set[int], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LoopBackend(block_sizes=sizes)
    monkeypatch.setattr(registry, "BACKENDS", (backend,))
    used: list[AttentionStep] = []
    real = backend.prepare

    def prepare(step: AttentionStep, pool: KvPool) -> Any:
        used.append(step)
        return real(step, pool)

    monkeypatch.setattr(backend, "prepare", prepare)
    probe(tiny("llama"), block_size=max(sizes))
    size = min(sizes)
    assert {step.block_size for step in used} == {size}
    assert max(step.block_tables.shape[1] for step in used) == 3
    assert [[span.rows for span in step.spans][-1] for step in used] == [3 + 2 * (size - 4), 4, 1, 2]


def test_refuses_a_backend_that_computes_different_logits(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(LoopBackend):
        def prepare(self, step: AttentionStep, pool: KvPool) -> Any:
            return super().prepare(replace(step, block_tables=step.block_tables.flip(1)), pool)

    monkeypatch.setattr(registry, "BACKENDS", (Wrong(),))
    with pytest.raises(ModelError, match="LlamaForCausalLM computes different logits on paged attention"):
        probe(build(transformers.LlamaConfig(**SIZES), tokenizer))
