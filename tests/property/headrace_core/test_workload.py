"""For any options a plan has its count, its order and its bounds, and no trace or stream breaks the reader."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from headrace_bench.modes import outcome
from headrace_client.load.sse import Completion, StreamError
from headrace_core.errors import HeadraceError
from headrace_core.workload.arrivals import ArrivalProcess, Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import Prefix, RequestMix, plan_window
from headrace_core.workload.trace_files import parse_trace

RATES = st.floats(0.01, 1e5)
ARRIVALS = st.builds(
    Arrivals,
    process=st.sampled_from(ArrivalProcess),
    rate=RATES,
    ramp_to=st.none() | RATES,
    burstiness=st.floats(0.01, 100),
)
LENGTHS = st.one_of(
    st.integers(1, 500).map(str),
    st.tuples(st.integers(1, 200), st.integers(0, 300)).map(lambda pair: f"uniform:{pair[0]}:{sum(pair)}"),
    st.tuples(st.integers(1, 200), st.floats(0.1, 2.9)).map(lambda pair: f"lognormal:{pair[0]}:{pair[1]:.2f}"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("timestamp", "at", "prompt_tokens", "input_length", "prompt", "messages", "output_tokens", "max_tokens")


@given(ARRIVALS, st.integers(1, 200), st.floats(0, 1e4), st.integers(0, 2**31))
def test_arrivals_are_as_many_as_asked_in_order_and_inside(
    arrivals: Arrivals, requests: int, duration: float, seed: int
) -> None:
    times = arrivals.times(requests, duration, random.Random(seed))
    assert len(times) == requests
    assert times == sorted(times)
    assert all(0 <= at <= duration for at in times)


SHAPES = st.builds(
    RequestMix,
    prompt=LENGTHS.map(Length.parse),
    long=LENGTHS.map(Length.parse),
    output=LENGTHS.map(Length.parse),
    long_share=st.floats(0, 1),
    prefix=st.builds(Prefix, tokens=st.integers(0, 64), share=st.just(0.5)),
)


@given(SHAPES, st.integers(0, 2**31))
def test_no_request_exceeds_what_the_shape_says(shape: RequestMix, seed: int) -> None:
    plan = plan_window(Arrivals(rate=1), shape, requests=30, duration=30.0, seed=seed)
    assert max(item.prompt_tokens + item.output_tokens for item in plan) <= shape.longest
    assert min(min(item.prompt_tokens, item.output_tokens) for item in plan) >= 1
    assert all(item.prefix_tokens < item.prompt_tokens for item in plan)


@given(LENGTHS)
def test_a_length_reads_what_it_writes(text: str) -> None:
    length = Length.parse(text)
    assert Length.parse(str(length)) == length


@given(st.lists(st.text() | st.dictionaries(st.sampled_from(FIELDS), JSON).map(json.dumps), max_size=4))
def test_a_trace_is_read_or_refused_by_line(lines: list[str]) -> None:
    try:
        plan = parse_trace(lines, name="t")
    except HeadraceError:
        return
    assert plan[0].at == 0
    assert all(item.prompt_tokens >= 1 and item.output_tokens >= 1 for item in plan)


@given(st.lists(JSON.map(json.dumps) | st.text(), max_size=6))
def test_a_stream_is_read_or_refused(payloads: list[str]) -> None:
    seen = Completion(keep_text=True)
    for payload in payloads:
        try:
            seen.feed(payload, 1.0)
        except StreamError:
            return
    assert seen.output_tokens >= 0


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=60))
def test_a_percentile_below_the_first_bound_is_exact_and_all_others_are_marked(values: list) -> None:
    found = outcome.tail(values)
    bounds = [value for value, bound in values if bound]
    for name in ("p50", "p95", "p99", "max"):
        assert (name in found.beyond) == bool(bounds and getattr(found, name) >= min(bounds))
