"""Options of `bench modes`."""

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.modes.options import ModesOptions, parse_lengths


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"budget": 0.0}, "--budget"),
        ({"long_share": 1.0}, "--long-share"),
        ({"low_rate": -1.0}, "--low-rate"),
        ({"output_tokens": "none"}, "--output-tokens"),
        ({"long_prompt_tokens": "0"}, "--long-prompt-tokens"),
    ],
)
def test_a_bad_option_names_its_flag(change: dict, flag: str) -> None:
    with pytest.raises(BenchError, match=f"^{flag}: "):
        parse_lengths(ModesOptions(**change))
