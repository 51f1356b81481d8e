import pytest

from headrace_core.workload.plans import (
    RequestKind,
    Workload,
    derive_seed,
    endless_load,
    plan_load,
    prompt_ids,
)

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
