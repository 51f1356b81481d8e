"""RoPE that looks at the longest position of a call is pinned to the model length: neighbours change nothing."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

from headrace_core.knobs.resolve import resolve
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.attention.step import SequenceRows, make_step
from headrace_engine.engine import size_pool
from headrace_engine.errors import ModelError, SettingsError
from headrace_engine.loop.probe import probe
from headrace_engine.model.loading import LoadedModel, wrap_model
from headrace_engine.model.rope import check_rope_length, pin_rope

ORIGINAL, LONGEST = 128, 256
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 257, "max_position_embeddings": LONGEST, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 256,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": ORIGINAL, "factor": LONGEST / ORIGINAL,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def build(config: Any, tokenizer: Any) -> LoadedModel:
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.25)
    return wrap_model(module, tokenizer, name="tiny")


def phi3(tokenizer: Any) -> LoadedModel:
    config = transformers.Phi3Config(
        **SIZES, rope_parameters=dict(LONGROPE), original_max_position_embeddings=ORIGINAL
    )  # fmt: skip
    return build(config, tokenizer)


def ids(length: int, seed: int) -> list[int]:
    return torch.randint(0, 257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def together(model: LoadedModel, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits of all rows, prefilled in one step."""
    layers = probe(model)
    pool = make_pool(layers, num_blocks=200, block_size=4, device=model.device, dtype=model.dtype)
    tables = [tuple(range(1 + 64 * at, 65 + 64 * at)) for at in range(len(rows))]
    step = make_step([SequenceRows(0, len(row), table) for row, table in zip(rows, tables, strict=True)], pool)
    flat = [token for row in rows for token in row]
    logits = model.module(
        input_ids=torch.tensor([flat]),
        position_ids=step.positions[None],
        use_cache=False,
        headrace_step=SdpaBackend().prepare(step, pool),
    ).logits[0]
    return list(logits.split([len(row) for row in rows]))


def plain(model: LoadedModel, row: Sequence[int]) -> torch.Tensor:
    """transformers' own logits of one text, in a model of its own that nobody pinned."""
    config = copy.deepcopy(model.module.config)  # from_config writes its choice of attention into the object
    fresh = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    fresh.load_state_dict(model.module.state_dict())
    with torch.inference_mode():
        logits: torch.Tensor = fresh.eval()(input_ids=torch.tensor([list(row)]), use_cache=False).logits[0]
    return logits


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).abs().max() / other.std()) < 2e-5


def test_unpinned_a_long_neighbour_would_change_a_short_request(tokenizer: Any) -> None:
    model = phi3(tokenizer)
    short, long = ids(20, 1), ids(200, 2)
    alone, beside = together(model, [short])[0], together(model, [short, long])[0]
    assert not close(beside, alone)


@pytest.mark.parametrize("limit", [ORIGINAL, ORIGINAL + 1, LONGEST])
def test_longrope_pinned_is_the_same_alone_and_beside_a_long_prompt(limit: int, tokenizer: Any) -> None:
    model = phi3(tokenizer)
    pin_rope(model.module, limit)
    short, long = ids(20, 1), ids(limit, 2)
    alone = together(model, [short])[0]
    beside, whole = together(model, [short, long])
    assert close(beside, alone)
    # Exactly what transformers computes for a text as long as the model length ...
    assert close(whole, plain(model, long))
    # ... and for a short one as long as the short factors are in force.
    assert close(alone, plain(model, short)) == (limit <= ORIGINAL)


def test_a_pin_can_be_moved(tokenizer: Any) -> None:
    model = phi3(tokenizer)
    rotary = model.module.model.rotary_emb
    found = []
    for limit in (ORIGINAL, LONGEST, ORIGINAL):
        pin_rope(model.module, limit)
        found.append(rotary.inv_freq.clone())
    assert torch.equal(found[0], found[2])
    ratio = torch.tensor(LONGROPE["long_factor"]) / torch.tensor(LONGROPE["short_factor"])
    assert torch.allclose(found[0], found[1] * ratio)


def test_each_layer_type_is_pinned_for_itself(tokenizer: Any) -> None:
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": dict(LONGROPE)}
    config = transformers.Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=9, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=rope, query_pre_attn_scalar=8,
    )  # fmt: skip
    model = build(config, tokenizer)
    pin_rope(model.module, LONGEST)
    short, long = ids(20, 1), ids(LONGEST, 2)
    beside, whole = together(model, [short, long])
    assert close(beside, together(model, [short])[0])
    assert close(whole, plain(model, long))


def test_dynamic_does_not_scale_up_to_the_models_length(tokenizer: Any) -> None:
    model = build(transformers.LlamaConfig(**SIZES, rope_parameters=dict(DYNAMIC)), tokenizer)
    pin_rope(model.module, LONGEST)
    short, long = ids(20, 1), ids(LONGEST, 2)
    beside, whole = together(model, [short, long])
    assert close(beside, plain(model, short))
    assert close(whole, plain(model, long))


def test_dynamic_beyond_it_is_refused_with_both_numbers(tokenizer: Any) -> None:
    model = build(transformers.LlamaConfig(**SIZES, rope_parameters=dict(DYNAMIC)), tokenizer)
    expected = rf"LlamaForCausalLM uses dynamic RoPE.* beyond {LONGEST} tokens.*--max-model-len {LONGEST + 1} .*at most"
    with pytest.raises(ModelError, match=expected):
        check_rope_length(model.module, LONGEST + 1)
    check_rope_length(model.module, LONGEST)


def test_what_cannot_be_pinned_is_refused_with_the_numbers(tokenizer: Any) -> None:
    # Phi-MoE also scales its rotation by the longest position, beside transformers' common code.
    config = transformers.PhimoeConfig(
        **SIZES, num_local_experts=2, num_experts_per_tok=1,
        rope_parameters=LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.3},
    )  # fmt: skip
    model = build(config, tokenizer)
    pin_rope(model.module, ORIGINAL)
    with pytest.raises(ModelError, match=rf"longrope.*max_model_len {LONGEST}: .*max-model-len to at most {ORIGINAL}"):
        pin_rope(model.module, LONGEST)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_other_types_are_left_as_they_are(rope: dict[str, Any], tokenizer: Any) -> None:
    model = build(transformers.LlamaConfig(**SIZES, rope_parameters=rope), tokenizer)
    before = model.module.model.rotary_emb.inv_freq.clone()
    pin_rope(model.module, LONGEST)
    assert torch.equal(model.module.model.rotary_emb.inv_freq, before)
    assert model.module.model.rotary_emb.rope_type == rope["rope_type"]


def test_the_server_pins_by_the_length_it_really_serves(tokenizer: Any) -> None:
    model = phi3(tokenizer)
    layers = probe(model)
    rotary = model.module.model.rotary_emb
    pin_rope(model.module, ORIGINAL)
    short = rotary.inv_freq.clone()
    pin_rope(model.module, LONGEST)
    long = rotary.inv_freq.clone()
    one = 128 * 2 * 2 * 16 * 4  # tokens, layers, KV heads, key and value, bytes
    for values, length, expected in (
        ({}, LONGEST, long),
        ({"max_model_len": ORIGINAL}, ORIGINAL, short),
        ({"kv_cache_bytes": 2 * one, "block_size": 128}, 128, short),  # the KV cache holds no more
    ):
        _, config = size_pool(model, layers, resolve(values))
        assert config.max_model_len == length
        assert torch.equal(rotary.inv_freq, expected)
    with pytest.raises(SettingsError, match="exceeds the model's own limit 256"):
        size_pool(model, layers, resolve({"max_model_len": LONGEST + 1}))
