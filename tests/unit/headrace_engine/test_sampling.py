"""Sampling honours its parameters and depends on nothing but its inputs."""

from collections import Counter

import pytest
import torch

from headrace_engine.sampling import SamplingParams, sample, uniform

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def draws(**options: object) -> Counter[int]:
    params = SamplingParams(prompt_len=1, seed="seed", **options)  # type: ignore[arg-type]
    return Counter(sample(LOGITS, params, index) for index in range(2000))


def test_temperature_zero_and_top_k_one_are_greedy() -> None:
    assert draws(temperature=0.0) == {0: 2000}
    assert draws(temperature=1.5, top_k=1) == {0: 2000}


def test_shares_follow_the_probabilities() -> None:
    counts = draws(temperature=1.0)
    assert [counts[at] / 2000 for at in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"top_k": 2}, {0, 1}), ({"top_p": 0.5}, {0}), ({"top_p": 0.79}, {0, 1}), ({"top_p": 0.6, "top_k": 3}, {0, 1})],
)
def test_top_k_and_top_p_cut_the_tail(options: dict[str, float], kept: set[int]) -> None:
    assert set(draws(temperature=1.0, **options)) == kept


def test_a_nucleus_wider_than_the_first_look_is_complete() -> None:
    flat = torch.zeros(5000)
    params = SamplingParams(prompt_len=1, temperature=1.0, top_p=0.999, seed="x")
    assert max(sample(flat, params, index) for index in range(200)) > 2000


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    assert uniform("a", 3) == uniform("a", 3)
    assert len({uniform(seed, index) for seed in "abc" for index in range(50)}) == 150
