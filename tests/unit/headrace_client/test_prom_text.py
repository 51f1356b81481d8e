"""The exposition format, with the cases that make it hard to parse."""

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace_client.prom_text import parse, total

TEXT = r"""# HELP x y
# TYPE a_total counter
a_total{model="m",note="with \"quotes\" and , and }"} 2.5
a_total{model="n",path="C:\\dir\nnext"} 1 1700000000000
b 7
bad line here
d{open="never closed} 1
c NaN
# TYPE requests counter
requests{x="1"} 3
spaced{ a = "b" }   4
"""


def test_sums_are_over_labels_and_absence_is_not_zero() -> None:
    assert total(TEXT, "a_total") == 3.5
    assert total(TEXT, "b") == 7
    assert total(TEXT, "a") is None
    assert total("", "a") is None


def test_labels_may_hold_braces_commas_and_escapes() -> None:
    first, second = (sample.labels for sample in parse(TEXT) if sample.name == "a_total")
    assert first == {"model": "m", "note": 'with "quotes" and , and }'}
    assert second == {"model": "n", "path": "C:\\dir\nnext"}


def test_an_invalid_line_hides_no_other() -> None:
    assert [sample.name for sample in parse(TEXT)] == ["a_total", "a_total", "b", "c", "requests", "spaced"]
    assert math.isnan(next(sample.value for sample in parse(TEXT) if sample.name == "c"))


def test_a_counter_keeps_the_name_it_is_written_with() -> None:
    assert total(TEXT, "requests") == 3
    assert total(TEXT, "requests_total") is None


@given(st.text(alphabet=st.sampled_from('ab:_{}"\\=,# \t\n1.eN\u2028')))
def test_no_input_raises_an_error(text: str) -> None:
    assert len(list(parse(text))) <= text.count("\n") + 1
