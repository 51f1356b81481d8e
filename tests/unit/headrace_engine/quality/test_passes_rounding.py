"""Batching, chunking, preemption and cache hits change nothing beyond rounding; faults that do are caught.

The bound is derived in `headrace_bench.quality.rounding`. Measured where it was written (AVX2 and FMA, no bfloat16
instructions): in float32 the largest move of a log-probability was at most a tenth of it, in bfloat16 at most a fifth;
one lost KV position moves them by thousands of times the bound.
"""

from functools import cache
from typing import Any

import pytest
import torch
import transformers

from headrace_bench.quality.comparison import QualityComparison
from headrace_bench.quality.verdict import QualityVerdict, VerdictRules, judge
from headrace_engine import device as devices
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.model.demo import ensure_demo_model
from headrace_engine.model.loading import LoadedModel, load_model, wrap_model
from headrace_engine.model.weights import find_source

VARIANTS: dict[str, dict[str, Any]] = {
    "chunks of 5": {"prefill_chunk_size": 5},
    "chunks of 1 and little room": {"prefill_chunk_size": 1, "num_blocks": 30},
    "one at a time": {"concurrency": 1},
    "static batches": {"batching": "static", "max_num_seqs": 3},
    "other blocks": {"block_size": 16},
    "no prefix cache": {"enable_prefix_caching": False},
}


def moved(comparison: QualityComparison) -> float:
    """The largest move of a log-probability, in units of what rounding explains."""
    moves = (comparison.decode.largest_move[1], comparison.prefill.largest_move[1])
    return max(moves) / comparison.rounding


@pytest.fixture(scope="module")
def base(tiny: Any, quality: Any) -> Any:
    """The defaults of an architecture, run once."""
    return cache(lambda name: quality.seen(tiny(name)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_that_the_scheduler_does_moves_a_number_beyond_rounding(
    variant: str, tiny: Any, base: Any, quality: Any
) -> None:
    model = tiny("llama")
    other = quality.seen(model, **VARIANTS[variant])
    comparison = quality.against(model, base("llama"), other)
    assert "num_blocks" not in VARIANTS[variant] or other.tally.preemptions > 0
    assert moved(comparison) < 0.5
    assert not comparison.beyond_rounding
    assert comparison.agreement.equal.estimate == 1


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gemma2-softcap", "gpt-oss-sinks", "gpt_neox"])
def test_every_architecture_is_transformers_up_to_rounding(name: str, tiny: Any, base: Any, quality: Any) -> None:
    model = tiny(name)
    plain = quality.plain(model)
    for seen in (base(name), quality.seen(model, prefill_chunk_size=5, num_blocks=30)):
        comparison = quality.against(model, plain, seen)
        assert moved(comparison) < 0.5
        assert not comparison.beyond_rounding
        assert comparison.agreement.equal.estimate == 1


def test_in_bfloat16_the_bound_is_wider_and_holds_too(tokenizer: Any, quality: Any) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        head_dim=8, vocab_size=257, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    model = wrap_model(module.to(torch.bfloat16), tokenizer, name="half")
    one, other = quality.seen(model), quality.seen(model, prefill_chunk_size=5, num_blocks=30)
    for comparison in (quality.against(model, one, other), quality.against(model, quality.plain(model), one)):
        assert 0 < moved(comparison) < 0.7
        assert not comparison.beyond_rounding


def test_a_lost_position_is_caught_by_the_bound_and_by_the_verdict(tiny: Any, quality: Any) -> None:
    model = tiny("llama")
    size = {"count": 24, "most": 32, "output_tokens": 16}
    sound, broken = quality.seen(model, **size), quality.seen(model, quality.loses_one_position, **size)
    comparison = quality.against(model, sound, broken)
    assert moved(comparison) > 100
    assert comparison.beyond_rounding
    finding = judge(comparison, VerdictRules())
    assert finding.verdict is QualityVerdict.INFERIOR
    assert "B writes what A writes, ties aside, on" in finding.sentence
    # The mean alone would have passed: a random model loses on one text what it gains on the next.
    assert judge(comparison, VerdictRules(least_agreement=0.0)).verdict is QualityVerdict.NON_INFERIOR


def test_a_cache_coarser_than_configured_is_caught_by_the_bound(tiny: Any, base: Any, quality: Any) -> None:
    model = tiny("llama")
    comparison = quality.against(model, base("llama"), quality.seen(model, quality.keeps_half))
    assert moved(comparison) > 5
    assert comparison.beyond_rounding


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    folder = ensure_demo_model(print)
    return load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)


DEMO = {"count": 16, "most": 36, "output_tokens": 6, "block_size": 16}


@pytest.fixture(scope="module")
def demo_base(demo: LoadedModel, quality: Any) -> Any:
    return quality.seen(demo, **DEMO)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_model_stays_within_the_bound(demo: LoadedModel, demo_base: Any, quality: Any) -> None:
    crowded = quality.seen(demo, prefill_chunk_size=7, num_blocks=14, **DEMO)
    assert crowded.tally.preemptions > 0
    for comparison in (
        quality.against(demo, demo_base, crowded),
        quality.against(demo, quality.plain(demo, count=16, most=36, output_tokens=6), demo_base),
    ):
        assert moved(comparison) < 0.5
        assert not comparison.beyond_rounding
        assert judge(comparison, VerdictRules()).verdict is QualityVerdict.NON_INFERIOR


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_model_that_loses_a_position_is_inferior(demo: LoadedModel, demo_base: Any, quality: Any) -> None:
    class LosesTheFirst(quality.loses_one_position):  # type: ignore[misc, name-defined]
        position = 0

    comparison = quality.against(demo, demo_base, quality.seen(demo, LosesTheFirst, **DEMO))
    assert moved(comparison) > 100
    assert (
        judge(comparison, VerdictRules(least_agreement=0.0)).verdict is QualityVerdict.INFERIOR
    )  # by likelihood alone


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_model_in_bfloat16_stays_within_the_bound(quality: Any) -> None:
    features = devices.cpu_features()
    if not devices.FAST_BF16.intersection(features):
        pytest.skip(f"bfloat16 takes ten times as long as float32 on this CPU ({', '.join(features)})")
    folder = ensure_demo_model(print)
    model = load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.bfloat16)
    one, other = quality.seen(model, **DEMO), quality.seen(model, prefill_chunk_size=7, num_blocks=14, **DEMO)
    assert not quality.against(model, one, other).beyond_rounding
