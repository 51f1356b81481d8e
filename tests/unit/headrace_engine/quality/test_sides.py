"""Building an engine from the knobs of a side."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from headrace_bench.quality.specs import parse
from headrace_core.observations import ModelWidths
from headrace_engine.errors import SettingsError
from headrace_engine.loop.probe import probe
from headrace_engine.quality import sides
from headrace_engine.quality.sides import ResolvedSide

CPU = torch.device("cpu")


def side(label: str, typed: str) -> ResolvedSide:
    return sides.resolved(parse(label, typed), CPU)


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("max_num_seqs=0", "--b max_num_seqs: must be at least 1, got 0"),
        ("batching=dynamic", "--b batching: must be one of continuous, static"),
        ("prefill_chunk_size=64,max_num_batched_tokens=32,max_num_seqs=2", "--b prefill_chunk_size: 64 exceeds"),
    ],
)
def test_a_knob_out_of_bounds_is_named_with_its_flag(typed: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        side("B", typed)
    assert complaint in str(caught.value)


def test_the_pool_has_exactly_the_blocks_asked_for(tiny: Any) -> None:
    model = tiny("llama")
    spec = side("A", "num_blocks=20,block_size=4")
    built = sides.build(spec, model, probe(model))
    assert built.runner.pool.num_blocks == 20
    assert built.runner.pool is built.all_rows.pool
    assert built.scheduler.max_model_len == 19 * 4


def test_a_number_format_of_the_cache_that_is_not_kept_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    plain = sides.size_pool

    def deaf(loaded: Any, layers: Any, config: Any) -> Any:
        return plain(loaded, layers, replace(config, kv_cache_dtype="auto"))

    monkeypatch.setattr(sides, "size_pool", deaf)
    spec = side("B", "kv_cache_dtype=bfloat16,num_blocks=20")
    with pytest.raises(SettingsError, match="the KV pool holds float32 anyway"):
        sides.build(spec, model, probe(model))


def test_number_formats_follow_the_knobs() -> None:
    half = side("A", "dtype=bfloat16")
    assert sides.dtype(half, CPU) is torch.bfloat16
    assert sides.kv_dtype(half, torch.bfloat16) is torch.bfloat16
    cache = side("A", "kv_cache_dtype=float16")
    assert sides.kv_dtype(cache, torch.float32) is torch.float16


def test_the_shape_is_read_from_the_weights(tiny: Any) -> None:
    assert sides.shape_of(tiny("llama")) == ModelWidths(layers=2, width=64)
