"""The formulas, against a worked example and a loop over every weight and key."""

import pytest

from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.sim.roofline import (
    AttentionLayers,
    Experts,
    ModelShape,
    Peaks,
    StepCost,
    step_cost,
    step_shapes,
)
from headrace_core.sim.step_time import StepShape

# Llama-3.1-8B in bfloat16: 32 layers of 4096, 32 query and 8 KV heads of 128, 14336 inner, 128256 tokens.
LAYER = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14_336
HEAD = 128_256 * 4096
LLAMA = ModelShape(
    layer_params=32 * LAYER,
    head_params=HEAD,
    weight_bytes=2 * (32 * LAYER + HEAD),
    kv_element_bytes=2,
    attention=(AttentionLayers(layers=32, query_heads=32, kv_heads=8, key_dim=128, value_dim=128),),
)
H100 = Peaks(flops=989e12, read_bytes=3.35e12)


def seq(start: int, tokens: int, *, prefill: bool, samples: bool = True) -> ScheduledSeq:
    return ScheduledSeq(
        request_id="a", start=start, token_ids=(0,) * tokens, block_table=(), samples=samples, is_prefill=prefill
    )


def cost(model: ModelShape, *seqs: ScheduledSeq) -> StepCost:
    return step_cost(model, step_shapes(model, seqs, StepShape.of(seqs)))


def test_the_worked_example() -> None:
    one = cost(LLAMA, seq(0, 1, prefill=False))
    assert LLAMA.weight_bytes == pytest.approx(15.0e9, rel=0.01)
    assert one.read_bytes / H100.read_bytes == pytest.approx(4.5e-3, rel=0.02), "at most 222 tokens a second"
    batch = cost(LLAMA, *[seq(2047, 1, prefill=False)] * 64)
    kv = batch.read_bytes - LLAMA.weight_bytes
    assert kv == 64 * 2048 * 128 * 1024, "128 KiB a token"
    assert batch.write_bytes == 64 * 128 * 1024
    assert kv / H100.read_bytes == pytest.approx(5.1e-3, rel=0.02)
    chunk = cost(LLAMA, seq(0, 2048, prefill=True, samples=False))
    assert chunk.flops - attention(LLAMA, 2048 * 2049 // 2) == pytest.approx(2 * 6.98e9 * 2048, rel=0.001)
    assert 2048 / (chunk.flops / H100.flops) == pytest.approx(71e3, rel=0.04), "tokens a second at full utilisation"


def attention(model: ModelShape, pairs: int) -> float:
    kind = model.attention[0]
    return 2.0 * kind.layers * kind.query_heads * (kind.key_dim + kind.value_dim) * pairs


def test_only_sampled_rows_meet_the_head() -> None:
    with_sample, without = (cost(LLAMA, seq(0, 64, prefill=True, samples=flag)) for flag in (True, False))
    assert with_sample.flops - without.flops == 2 * HEAD
    assert with_sample.read_bytes == without.read_bytes


def test_chunks_of_a_prompt_add_up_but_for_what_they_read_again() -> None:
    whole = cost(LLAMA, seq(0, 512, prefill=True))
    parts = [cost(LLAMA, seq(0, 256, prefill=True, samples=False)), cost(LLAMA, seq(256, 256, prefill=True))]
    assert sum(part.flops for part in parts) == pytest.approx(whole.flops)
    assert sum(part.write_bytes for part in parts) == whole.write_bytes
    assert sum(part.read_bytes for part in parts) == whole.read_bytes + LLAMA.weight_bytes + 256 * 128 * 1024


def test_windowed_layers_see_less() -> None:
    full = AttentionLayers(layers=2, query_heads=4, kv_heads=2, key_dim=8, value_dim=8)
    near = AttentionLayers(layers=3, query_heads=4, kv_heads=2, key_dim=8, value_dim=8, window=16)
    model = ModelShape(layer_params=0, head_params=0, weight_bytes=0, kv_element_bytes=4, attention=(full, near))
    assert model.windows == (None, 16)
    step = (seq(99, 1, prefill=False), seq(0, 40, prefill=True))
    pairs = 40 * 41 // 2
    near_pairs = sum(min(at + 1, 16) for at in range(40))
    found = cost(model, *step)
    assert found.flops == 2 * 4 * 16 * (2 * (100 + pairs) + 3 * (16 + near_pairs))
    assert found.read_bytes == 2 * 16 * 4 * (2 * (100 + 40) + 3 * (16 + 40))
    assert found.write_bytes == 2 * 16 * 4 * 5 * 41


def test_experts_are_read_as_far_as_rows_choose_them() -> None:
    experts = Experts(count=8, active=2, params=8000, weight_bytes=16_000)
    model = ModelShape(
        layer_params=1000, head_params=0, weight_bytes=2000, kv_element_bytes=2, attention=LLAMA.attention,
        experts=experts,
    )  # fmt: skip
    one, many = (cost(model, *[seq(0, 1, prefill=False)] * rows) for rows in (1, 200))
    kv = 128 * 1024
    assert one.flops - attention(model, 1) == 2 * (1000 + 2000)
    assert one.read_bytes - kv == pytest.approx(2000 + 16_000 * 2 / 8)
    assert many.read_bytes - 200 * kv == pytest.approx(2000 + 16_000)


def test_a_fork_without_rows_costs_only_its_sample() -> None:
    fork = seq(100, 0, prefill=True)
    assert cost(LLAMA, fork) == StepCost(2.0 * HEAD, 0.0, 0.0)


def test_utilisation_is_a_share_of_the_peaks() -> None:
    step = StepCost(flops=50.0, read_bytes=20.0, write_bytes=5.0)
    assert step.mfu(2.0, Peaks(flops=100.0, read_bytes=50.0)) == 0.25
    assert step.mbu(2.0, Peaks(flops=100.0, read_bytes=50.0)) == 0.25
    assert (step.mfu(2.0, Peaks()), step.mbu(0.0, H100)) == (0.0, 0.0), "not known, not infinite"


def test_an_empty_step_costs_nothing() -> None:
    assert step_cost(LLAMA, {None: StepShape.of([])}) == StepCost(0.0, 0.0, 0.0)
