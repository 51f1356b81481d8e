"""Sampling honours its parameters and depends on nothing but its inputs."""

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_engine.sampling import sampler as sampling
from headrace_engine.sampling.logprobs import NOT_NUMBERS
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import Sampled, sample, uniform
from headrace_engine.sampling.token_state import Row, TokenState

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def row(index: int = 0, **options: Any) -> Row:
    return Row(TokenState(SamplingParams(prompt_len=1, **{"seed": "seed"} | options), (0,)), index)


def one(logits: torch.Tensor, at: Row) -> Sampled:
    return sample(logits[None], [at])[0]


def draws(logits: torch.Tensor = LOGITS, count: int = 2000, **options: Any) -> Counter[int]:
    rows = [row(index, **options) for index in range(count)]
    return Counter(item.token for item in sample(logits.repeat(count, 1), rows))


def test_temperature_zero_and_top_k_one_are_greedy() -> None:
    assert draws(temperature=0.0) == {0: 2000}
    assert draws(temperature=1.5, top_k=1) == {0: 2000}


def test_shares_follow_the_probabilities() -> None:
    counts = draws(temperature=1.0)
    assert [counts[at] / 2000 for at in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)


def test_temperature_sharpens_and_flattens() -> None:
    def expected(temperature: float) -> list[float]:
        return (LOGITS / temperature).softmax(-1).tolist()

    for temperature in (0.5, 2.0):
        counts = draws(temperature=temperature)
        assert [counts[at] / 2000 for at in range(4)] == pytest.approx(expected(temperature), abs=0.04)
    assert draws(temperature=1e-9) == {0: 2000}, "no division overflows"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.79}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({"top_p": 0.6, "top_k": 3}, {0, 1}),
        ({"min_p": 0.4}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        # 0.5 + 0.3 are 84 % of what top-k leaves, and 80 % of all.
        ({"top_p": 0.82, "top_k": 3}, {0, 1}),
        ({"top_p": 0.82}, {0, 1, 2}),
        ({"top_p": 0.82, "min_p": 0.2}, {0, 1}),
    ],
)
def test_min_p_top_k_and_top_p_cut_the_tail(options: dict[str, float], kept: set[int]) -> None:
    assert set(draws(temperature=1.0, **options)) == kept


def test_the_cuts_come_after_the_temperature() -> None:
    # At temperature 1 the likeliest has 50 %; at 3 it takes three tokens to reach 79 %.
    assert set(draws(temperature=3.0, top_p=0.79)) == {0, 1, 2}
    assert set(draws(temperature=3.0, min_p=0.6)) == {0, 1, 2}


def test_a_nucleus_wider_than_the_first_look_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(5)) * 2
    options = [
        {"top_p": 0.97}, {"top_p": 0.3}, {"top_k": 50, "top_p": 0.9}, {"top_k": 200}, {"min_p": 0.01, "top_p": 0.99},
    ]  # fmt: skip
    whole = [draws(logits, 300, temperature=1.3, **option) for option in options]
    monkeypatch.setattr(sampling, "LOOKS", (4, 70))
    assert [draws(logits, 300, temperature=1.3, **option) for option in options] == whole


def reference_kept(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """What is kept, token by token, straight from the definitions."""
    shares = (logits.double() / params.temperature).softmax(-1).tolist()
    kept = [at for at, share in enumerate(shares) if share >= params.min_p * max(shares)]
    if params.top_k:
        kth = sorted((shares[at] for at in kept), reverse=True)[: params.top_k][-1]
        kept = [at for at in kept if shares[at] >= kth]
    total, before, nucleus = sum(shares[at] for at in kept), 0.0, set()
    for at in sorted(kept, key=lambda at: -shares[at]):
        if params.top_p < 1.0 and before >= params.top_p * total:
            break
        nucleus.add(at)
        before += shares[at]
    return nucleus


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999), top_k=st.integers(0, 12), top_p=st.floats(0.05, 1.0), min_p=st.floats(0.0, 0.5),
    looks=st.sampled_from([(2, 4), (5,), (256, 4096)]),
)  # fmt: skip
def test_the_kept_tokens_are_those_of_the_definitions(
    seed: int, top_k: int, top_p: float, min_p: float, looks: tuple[int, ...]
) -> None:
    logits = torch.randn(10, generator=torch.Generator().manual_seed(seed)) * 2
    params = {"temperature": 0.8, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    wanted = reference_kept(logits, SamplingParams(prompt_len=1, **params))  # type: ignore[arg-type]
    before, sampling.LOOKS = sampling.LOOKS, looks
    try:
        found = set(draws(logits, 1500, **params)) if top_k != 1 else wanted
    finally:
        sampling.LOOKS = before
    assert found <= wanted
    shares = (logits / 0.8).softmax(-1)
    assert {at for at in wanted if shares[at] > 0.02} <= found


def test_tokens_that_tie_are_kept_together() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])
    assert set(draws(logits, temperature=1.0, top_k=2)) == {1, 2, 3}
    assert set(draws(logits, temperature=1.0, top_p=0.35)) == {1, 2, 3}


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    assert uniform("a", 3) == uniform("a", 3)
    assert len({uniform(seed, index) for seed in "abc" for index in range(50)}) == 150
    assert all(0.0 <= uniform("x", index) < 1.0 for index in range(1000))


def test_a_token_without_weight_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([float("-inf"), 0.0, 1.0, float("-inf")])
    for share, token in ((0.0, 1), (1 - 2**-53, 2), (1.0, 2)):
        monkeypatch.setattr(sampling, "uniform", lambda _seed, _index, share=share: share)
        assert one(logits, row(temperature=1.0)).token == token


def mixed_rows(count: int) -> list[Row]:
    draw = random.Random(4)
    return [
        row(
            draw.randrange(50), temperature=draw.choice([0.0, 0.7, 1.0, 1.9]), top_k=draw.choice([0, 0, 1, 5, 2000]),
            top_p=draw.choice([1.0, 0.9, 0.5]), min_p=draw.choice([0.0, 0.05]), seed=str(at),
            logit_bias=draw.choice([(), ((3, 5.0),)]), logprobs=draw.choice([None, 0, 4]),
        )
        for at in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gives_the_same_alone_and_in_any_company(dtype: torch.dtype) -> None:
    rows = mixed_rows(40)
    logits = (torch.randn(40, 3001, generator=torch.Generator().manual_seed(2)) * 3).to(dtype)
    together = sample(logits, rows)
    assert [one(logits[at], each) for at, each in enumerate(rows)] == together
    order = random.Random(1).sample(range(40), 40)
    assert sample(logits[order], [rows[at] for at in order]) == [together[at] for at in order]
    assert len({item.token for item in together}) > 20


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_fail_their_row_alone(bad: float) -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 2] = bad
    good, broken, other = sample(logits, [row(temperature=1.0), row(temperature=1.0), row()])
    assert broken == Sampled(problem=NOT_NUMBERS)
    assert good.problem is None
    assert other == Sampled(token=0)
    nothing = torch.full((1, 4), -math.inf)
    assert sample(nothing, [row()])[0].problem is not None


def test_a_bias_that_excludes_every_token_has_a_defined_end() -> None:
    nothing = tuple((token, -math.inf) for token in range(4))
    for temperature in (0.0, 1.0):
        stuck, other = sample(
            LOGITS.repeat(2, 1), [row(7, temperature=temperature, logit_bias=nothing), row(temperature=temperature)]
        )
        assert str(stuck.problem) == "no token is possible at output position 7: logit_bias together exclude all"
        assert other.problem is None


def test_four_choices_of_one_seed_differ_and_come_back() -> None:
    """n = 4 with a seed gives four texts, the same each time; the API adds the choice's number."""
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(9))

    def texts() -> list[tuple[int, ...]]:
        return [
            tuple(
                one(logits[index], row(index, temperature=1.0, seed=f"request-7-{choice}")).token for index in range(40)
            )
            for choice in range(4)
        ]

    first = texts()
    assert len(set(first)) == 4
    assert texts() == first
