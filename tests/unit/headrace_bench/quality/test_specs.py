"""The values of --a and --b."""

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.quality.specs import parse


def test_knobs_are_read_in_either_spelling() -> None:
    spec = parse(
        "B", "prefill-chunk-size=32, max_num_seqs=4,--decode-ratio=0.5,preemptible=off,batching=static,num_blocks=40",
    )  # fmt: skip
    assert spec.values == {
        "prefill_chunk_size": 32, "max_num_seqs": 4, "decode_ratio": 0.5, "preemptible": False, "batching": "static",
    }  # fmt: skip
    assert spec.num_blocks == 40
    assert spec.about.startswith("prefill-chunk-size=32")


def test_nothing_typed_is_the_defaults() -> None:
    spec = parse("A", " ")
    assert (spec.about, spec.num_blocks, spec.values) == ("defaults", None, {})


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("prefill_chunk_size", "--b prefill_chunk_size: knob=value is expected"),
        ("chunk=3", "--b chunk: is not a knob of this engine; known are attention_backend,"),
        ("max_num_seqs=four", "--b max_num_seqs=four: is not of kind int"),
        ("preemptible=maybe", "--b preemptible=maybe: is not of kind bool"),
        ("seed=1,seed=2", "--b: seed is given twice"),
        ("num_blocks=9,num_blocks=9", "--b: num_blocks is given twice"),
        ("num_blocks=1", "--b num_blocks=1: a whole number of at least 2 is expected"),
        ("num_blocks=many", "--b num_blocks=many: a whole number"),
    ],
)
def test_errors_name_the_flag(typed: str, complaint: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse("B", typed)
    assert complaint in str(caught.value)
