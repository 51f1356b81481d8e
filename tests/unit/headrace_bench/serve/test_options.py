"""Options of `bench serve`, together."""

import pytest

from headrace_bench.errors import BenchError
from headrace_bench.serve.options import ServeOptions, understand


def test_a_number_of_requests_sets_the_duration() -> None:
    asked = understand(ServeOptions(rate=4, requests=10))
    assert (asked.requests, asked.duration) == (10, 2.5)
    with pytest.raises(BenchError, match="--rate inf needs --requests"):
        understand(ServeOptions(rate=float("inf")))
