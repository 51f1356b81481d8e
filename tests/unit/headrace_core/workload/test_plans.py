"""Plans: exact in count and mix, seeded, one after another where they have no end."""

from dataclasses import replace

import pytest

from headrace_core.workload.arrivals import Arrivals
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import (
    Prefix,
    RequestKind,
    RequestMix,
    Workload,
    derive_seed,
    endless,
    endless_load,
    plan_load,
    plan_window,
    prompt_ids,
    with_warmup,
)

SHAPE = RequestMix(
    prompt=Length.parse("uniform:8:16"), output=Length.parse("lognormal:20:0.8"), long=Length.parse("200"),
    long_share=0.25,
)  # fmt: skip


def test_a_window_is_exact_in_its_mix_and_the_same_for_its_seed() -> None:
    plan = plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=3)
    assert len(plan) == 40
    assert sum(item.kind is RequestKind.LONG for item in plan) == 10
    assert {item.prompt_tokens for item in plan if item.kind is RequestKind.LONG} == {200}
    assert [item.at for item in plan] == sorted(item.at for item in plan)
    assert plan == plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=3)
    assert plan != plan_window(Arrivals(rate=4), SHAPE, requests=40, duration=10.0, seed=4)


def test_another_rate_leaves_the_lengths_as_they_were() -> None:
    slow, fast = (plan_window(Arrivals(rate=rate), SHAPE, requests=20, duration=20 / rate, seed=3) for rate in (1, 9))
    lengths = [[(item.prompt_tokens, item.output_tokens) for item in plan] for plan in (slow, fast)]
    assert lengths[0] == lengths[1]


def test_the_warmup_comes_before_and_changes_nothing_of_what_is_measured() -> None:
    arrivals = Arrivals(rate=5, ramp_to=9)
    without = with_warmup(arrivals, SHAPE, requests=35, duration=5.0, warmup=0.0, seed=1)
    plan = with_warmup(arrivals, SHAPE, requests=35, duration=5.0, warmup=2.0, seed=1)
    before, measured = plan[:10], plan[10:]
    assert all(item.at <= 2.0 for item in before)
    assert [replace(item, at=item.at - 2.0).at for item in measured] == pytest.approx([item.at for item in without])


def test_a_shared_start_is_part_of_the_prompt() -> None:
    shape = replace(SHAPE, long_share=0.0, prefix=Prefix(tokens=50, share=0.5, groups=3))
    plan = plan_window(Arrivals(rate=1), shape, requests=400, duration=400.0, seed=0)
    shared = [item for item in plan if item.prefix_tokens]
    assert len(shared) == pytest.approx(200, abs=40)
    assert all(item.prefix_tokens == 50 and item.prompt_tokens >= 51 for item in shared)
    assert {item.prefix_group for item in shared} == {0, 1, 2}
    assert shape.longest == 51 + shape.output.high


def test_a_closed_loops_source_never_ends_and_keeps_the_mix() -> None:
    source = endless(SHAPE, 7, block=8)
    items = [next(source) for _ in range(40)]
    assert sum(item.kind is RequestKind.LONG for item in items) == 10
    assert len({item.output_tokens for item in items}) > 5


@pytest.mark.parametrize(
    ("change", "word"),
    [({"long_share": 1.5}, "long_share"), ({"long_share": 0.5, "long": None}, "long_prompt_tokens")],
)
def test_a_bad_shape_names_its_field(change: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        replace(SHAPE, **change)


LOAD = Workload(
    rate=2.0, duration=10.0, short_prompt_tokens=24, long_prompt_tokens=768, long_share=0.2, output_tokens=32
)


def test_a_plan_is_the_asked_load_exactly() -> None:
    plan = plan_load(LOAD, 7)
    assert len(plan) == 20
    assert sum(request.kind is RequestKind.LONG for request in plan) == 4
    assert [request.at for request in plan] == sorted(request.at for request in plan)
    assert all(0 <= request.at < 10 for request in plan)
    assert all(request.prompt_tokens <= 960 for request in plan)
    assert max(request.prompt_tokens + request.output_tokens for request in plan) <= LOAD.longest


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    assert plan_load(LOAD, 7) == plan_load(LOAD, 7)
    assert plan_load(LOAD, 7) != plan_load(LOAD, 8)


def test_a_rate_below_one_request_a_window_still_sends_one() -> None:
    tiny = Workload(rate=0.01, duration=5.0, short_prompt_tokens=8, output_tokens=1)
    assert len(plan_load(tiny, 0)) == 1


def test_endless_load_goes_on_in_time_with_fresh_seeds() -> None:
    source = endless_load(LOAD, 1)
    requests = [next(source) for _ in range(60)]
    assert [request.at for request in requests] == sorted(request.at for request in requests)
    assert 20 <= requests[-1].at < 30
    assert [item.prompt_tokens for item in requests[:20]] != [item.prompt_tokens for item in requests[20:40]]


def test_endless_load_holds_the_rate_of_a_window_that_is_shorter_than_one_request_takes() -> None:
    source = endless_load(Workload(rate=0.01, duration=5.0, short_prompt_tokens=8, output_tokens=1), 0)
    assert 400 <= [next(source) for _ in range(5)][-1].at <= 500


def test_a_load_of_six_numbers_is_a_window_of_its_arrivals_and_its_mix() -> None:
    plan = plan_window(LOAD.arrivals, LOAD.mix, requests=20, duration=10.0, seed=7)
    assert plan_load(LOAD, 7) == tuple(plan)
    faster = replace(LOAD, rate=4.0, duration=5.0)
    assert [item.prompt_tokens for item in plan_load(faster, 7)] == [item.prompt_tokens for item in plan]


def test_prompts_have_their_length_and_differ_by_salt() -> None:
    first, second = (prompt_ids(50, salt=salt, low=32, high=96) for salt in ("a:0", "b:0"))
    assert len(first) == len(second) == 50
    assert first != second
    assert all(32 <= token < 96 for token in first + second)


def test_derived_seeds_differ_by_part() -> None:
    assert len({derive_seed(7, "verify", block) for block in range(50)} | {7}) == 51


@pytest.mark.parametrize(
    ("field", "value"),
    [("rate", 0.0), ("rate", float("nan")), ("duration", -1.0), ("long_share", 1.5), ("output_tokens", 0)],
)
def test_a_bad_field_is_named(field: str, value: float) -> None:
    values = {"rate": 1.0, "duration": 1.0, "short_prompt_tokens": 1, "output_tokens": 1} | {field: value}
    with pytest.raises(ValueError, match=field):
        Workload(**values)


def test_a_long_share_needs_a_length() -> None:
    with pytest.raises(ValueError, match="long_prompt_tokens"):
        Workload(rate=1.0, duration=1.0, short_prompt_tokens=1, output_tokens=1, long_share=0.5)
