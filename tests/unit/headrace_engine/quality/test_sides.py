"""What a person types after --a and --b."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from headrace_engine.errors import SettingsError
from headrace_engine.loop.probe import probe
from headrace_engine.quality import sides
from headrace_engine.quality.rounding import ModelWidths


def test_knobs_are_read_in_either_spelling() -> None:
    spec = sides.parse(
        "B", "prefill-chunk-size=32, max_num_seqs=4,--decode-ratio=0.5,preemptible=off,batching=static,num_blocks=40",
        device="cpu",
    )  # fmt: skip
    config = spec.config
    assert (config.prefill_chunk_size, config.max_num_seqs, config.decode_ratio) == (32, 4, 0.5)
    assert (config.preemptible, config.batching, spec.num_blocks) == (False, "static", 40)
    assert spec.about.startswith("prefill-chunk-size=32")


def test_nothing_typed_is_the_defaults() -> None:
    spec = sides.parse("A", " ", device="cpu")
    assert (spec.about, spec.num_blocks, spec.config.batching) == ("defaults", None, "continuous")


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("prefill_chunk_size", "--b prefill_chunk_size: knob=value is expected"),
        ("chunk=3", "--b chunk: is not a knob of this engine; known are attention_backend,"),
        ("max_num_seqs=four", "--b max_num_seqs=four: is not of kind int"),
        ("preemptible=maybe", "--b preemptible=maybe: is not of kind bool"),
        ("max_num_seqs=0", "--b max_num_seqs: must be at least 1, got 0"),
        ("batching=dynamic", "--b batching: must be one of continuous, static"),
        ("prefill_chunk_size=64,max_num_batched_tokens=32,max_num_seqs=2", "--b prefill_chunk_size: 64 exceeds"),
        ("seed=1,seed=2", "--b: seed is given twice"),
        ("num_blocks=9,num_blocks=9", "--b: num_blocks is given twice"),
        ("num_blocks=1", "--b num_blocks=1: a whole number of at least 2 is expected"),
        ("num_blocks=many", "--b num_blocks=many: a whole number"),
    ],
)
def test_what_is_wrong_is_named_with_its_flag(typed: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        sides.parse("B", typed, device="cpu")
    assert complaint in str(caught.value)


def test_blocks_are_counted_out(tiny: Any) -> None:
    model = tiny("llama")
    spec = sides.parse("A", "num_blocks=20,block_size=4", device="cpu")
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
    spec = sides.parse("B", "kv_cache_dtype=bfloat16,num_blocks=20", device="cpu")
    with pytest.raises(SettingsError, match="the KV pool holds float32 all the same"):
        sides.build(spec, model, probe(model))


def test_number_formats_follow_the_knobs() -> None:
    cpu = torch.device("cpu")
    half = sides.parse("A", "dtype=bfloat16", device="cpu")
    assert sides.dtype(half, cpu) is torch.bfloat16
    assert sides.kv_dtype(half, torch.bfloat16) is torch.bfloat16
    cache = sides.parse("A", "kv_cache_dtype=float16", device="cpu")
    assert sides.kv_dtype(cache, torch.float32) is torch.float16


def test_the_shape_is_read_off_the_weights(tiny: Any) -> None:
    assert sides.shape_of(tiny("llama")) == ModelWidths(layers=2, width=64)
