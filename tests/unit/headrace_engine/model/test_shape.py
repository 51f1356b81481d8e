"""The shape that utilisation is computed from, against the models themselves; and the measured peaks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from headrace_core.sim.roofline import AttentionLayers, Peaks
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.loop.probe import probe
from headrace_engine.model import peaks
from headrace_engine.model.loading import LoadedModel, wrap_model
from headrace_engine.model.shape import model_shape


def test_a_dense_model(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("llama")
    shape = model_shape(model, probe(model))
    attention, mlp = 32 * 32 + 2 * 32 * 16 + 32 * 32, 3 * 32 * 64
    norms = 5 * 32
    assert shape.layer_params == 2 * (attention + mlp)
    assert shape.head_params == 32 * 257
    assert shape.weight_bytes == 4 * (shape.layer_params + shape.head_params + norms)
    assert shape.weight_bytes == 4 * (model.num_parameters - 257 * 32), "all but the input embedding"
    assert shape.attention == (AttentionLayers(layers=2, query_heads=4, kv_heads=2, key_dim=8, value_dim=8),)
    assert (shape.kv_element_bytes, shape.experts) == (4, None)
    assert model_shape(model, probe(model), kv_dtype=torch.bfloat16).kv_element_bytes == 2


def test_a_head_that_shares_the_embedding_is_read_all_the_same(tokenizer: Any) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=257,
        tie_word_embeddings=True,
    )  # fmt: skip
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    model = wrap_model(module, tokenizer, name="tied")
    shape = model_shape(model, probe(model))
    assert shape.head_params == 32 * 257
    assert shape.weight_bytes == 4 * model.num_parameters


def test_windows_are_those_of_each_layer(tiny: Callable[[str], LoadedModel]) -> None:
    mixed = model_shape(tiny("gemma3"), probe(tiny("gemma3")))
    assert [(kind.layers, kind.window) for kind in mixed.attention] == [(1, 9), (1, None)]
    every = model_shape(tiny("mistral-sliding"), probe(tiny("mistral-sliding")))
    assert [(kind.layers, kind.window) for kind in every.attention] == [(2, 9)]
    assert every.windows == (9,)


def test_experts_are_counted_apart(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("gpt-oss-sinks")
    shape = model_shape(model, probe(model))
    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.active) == (2, 1)
    weights = sum(value.numel() for name, value in model.module.named_parameters() if ".experts." in name)
    assert 0 < shape.experts.params <= weights
    assert shape.weight_bytes + shape.experts.weight_bytes == 4 * (model.num_parameters - 257 * 32)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "gemma2-softcap", "gpt-oss-sinks", "gpt_neox"])
def test_flops_of_one_row_are_twice_the_weights_it_meets(tiny: Callable[[str], LoadedModel], architecture: str) -> None:
    model = tiny(architecture)
    shape = model_shape(model, probe(model))
    matrices = sum(
        module.weight.numel() for module in model.module.modules() if isinstance(module, torch.nn.Linear)
    )  # fmt: skip
    inactive = 0 if shape.experts is None else shape.experts.params
    assert shape.layer_params + shape.head_params + inactive == pytest.approx(matrices + inactive, rel=0.03)


def test_peaks_are_measured_once_and_known() -> None:
    device = torch.device("cpu")
    found = peaks.measure(device, torch.float32)
    assert 1e8 < found.flops < 1e15
    assert 1e8 < found.read_bytes < 1e14
    assert math.isfinite(found.flops)
    assert peaks.measure(device, torch.float32) is found


def test_peaks_that_cannot_be_measured_are_not_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel for this number format")

    monkeypatch.setattr(peaks, "_measured", {})
    monkeypatch.setattr(torch.nn.functional, "linear", refuse)
    assert peaks.measure(torch.device("cpu"), torch.float32) == Peaks()
    assert "no kernel" in caplog.text
