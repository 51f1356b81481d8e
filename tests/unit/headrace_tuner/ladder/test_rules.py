from headrace_core.knobs.resolve import resolve
from headrace_tuner.ladder.rules import engine_config, refusal


def test_a_contradiction_is_refused_with_the_engines_reason() -> None:
    config = resolve({"max_num_batched_tokens": 512, "max_num_seqs": 16})
    assert refusal(config, {"prefill_chunk_size": 64, "max_num_batched_tokens": 128}) is None
    why = refusal(config, {"prefill_chunk_size": 256, "max_num_batched_tokens": 128})
    assert why is not None
    assert "prefill_chunk_size: 256 exceeds max_num_batched_tokens 128" in why
    assert "boot value 512" in (refusal(config, {"max_num_batched_tokens": 1024}) or "")


def test_the_engines_report_reads_back_as_its_config() -> None:
    config = resolve({"max_num_batched_tokens": 512, "max_num_seqs": 16})
    assert engine_config(config.values() | {"a_later_knob": 1}, config.ceilings) == config
