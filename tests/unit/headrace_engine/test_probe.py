"""The probe refuses by name what would answer nonsense."""

from typing import Any

import pytest
import torch
import transformers

from headrace_engine.attention import IMPLEMENTATION
from headrace_engine.errors import ModelError
from headrace_engine.model import refuse_unsupported, wrap_model
from headrace_engine.probe import probe


def test_learns_the_kv_shape_of_each_layer(tiny: Any) -> None:
    shapes = probe(tiny("llama"))
    assert {index: (one.kv_heads, one.key_dim, one.value_dim) for index, one in shapes.items()} == {
        0: (2, 8, 8),
        1: (2, 8, 8),
    }


def test_refuses_an_architecture_that_bypasses_the_hook(tokenizer: Any) -> None:
    config = transformers.BloomConfig(vocab_size=257, hidden_size=32, n_layer=2, n_head=4)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    model = wrap_model(module, tokenizer, name="bloom")
    with pytest.raises(ModelError, match="BloomForCausalLM bypasses"):
        probe(model)


def test_refuses_wrong_attention(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    monkeypatch.setattr(model.module.model.layers[1].self_attn, "scaling", 30.0)
    probe(model)  # the same on both sides is fine
    real = torch.nn.functional.scaled_dot_product_attention

    def doubled(*given: Any, scale: float, **more: Any) -> torch.Tensor:
        return real(*given, scale=scale * 2, **more)

    monkeypatch.setattr("headrace_engine.attention.scaled_dot_product_attention", doubled)
    with pytest.raises(ModelError, match="LlamaForCausalLM computes something else"):
        probe(model)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_refuses_rope_that_depends_on_the_batch(kind: str) -> None:
    config = transformers.LlamaConfig()
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10_000.0}
    with pytest.raises(ModelError, match=f"RoPE of type {kind}"):
        refuse_unsupported(config)


def test_refuses_layers_that_keep_other_state() -> None:
    config = transformers.LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        refuse_unsupported(config)
