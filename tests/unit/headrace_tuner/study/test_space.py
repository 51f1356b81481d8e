import pytest

from headrace_api.v1alpha1.search import KnobRange
from headrace_core.knobs.resolve import resolve
from headrace_tuner.study.space import Space

SPACE = Space.of(
    [
        KnobRange(name="prefillChunkSize", min=32.0, max=256.0, log=True),
        KnobRange(name="maxNumBatchedTokens", choices=[128, 256, 512]),
        KnobRange(name="decodeRatio", min=0.0, max=0.5, step=0.2),
        KnobRange(name="enableChunkedPrefill", choices=[True, False]),
    ]
)


def test_samples_become_the_engines_values() -> None:
    params = {
        "prefill_chunk_size": 63.7,
        "max_num_batched_tokens": 256,
        "decode_ratio": 0.2,
        "enable_chunked_prefill": False,
    }
    knobs = SPACE.decode(params)
    assert knobs == params | {"prefill_chunk_size": 64}
    assert isinstance(knobs["prefill_chunk_size"], int)
    assert knobs["enable_chunked_prefill"] is False


def test_a_range_ends_at_the_last_step() -> None:
    assert SPACE.dimensions[2].high == pytest.approx(0.4)


def test_only_what_the_sampler_could_propose_is_in_the_space() -> None:
    inside = {
        "prefill_chunk_size": 64,
        "max_num_batched_tokens": 128,
        "decode_ratio": 0.4,
        "enable_chunked_prefill": True,
    }
    assert SPACE.holds(inside)
    for name, value in (
        ("prefill_chunk_size", 1024),
        ("prefill_chunk_size", None),
        ("max_num_batched_tokens", 1024),
        ("decode_ratio", 0.3),
        ("enable_chunked_prefill", 1),
    ):
        assert not SPACE.holds(inside | {name: value}), (name, value)
    assert not SPACE.holds({"prefill_chunk_size": 64})


def test_the_baseline_writes_out_what_follows_the_budget() -> None:
    config = resolve({"max_num_batched_tokens": 512})
    baseline = SPACE.baseline(config.hot_values())
    assert baseline["prefill_chunk_size"] == 512
    assert set(baseline) == set(SPACE.names)
