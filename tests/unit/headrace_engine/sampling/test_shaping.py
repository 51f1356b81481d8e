"""Bias, penalties and masks are those of transformers and OpenAI, and act in their order."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import sample
from headrace_engine.sampling.shaping import shape
from headrace_engine.sampling.token_state import Row, TokenState

VOCABULARY = 50


def state_of(prompt: list[int], output: list[int], **options: Any) -> TokenState:
    state = TokenState(SamplingParams(prompt_len=len(prompt), **options), tuple(prompt))
    for token in output:
        state.accept(token)
    return state


def random_logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 4


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_the_repetition_penalty_is_transformers(penalty: float) -> None:
    prompt, output = [1, 2, 3, 3, 9], [9, 4, 4, 17]
    logits = random_logits()
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([prompt + output]), logits.clone())  # type: ignore[arg-type]
    shape(logits, [Row(state_of(prompt, output, repetition_penalty=penalty), 4)])
    assert torch.equal(logits, expected)


def test_presence_and_frequency_count_the_output_alone_as_openai_says() -> None:
    output = [4, 4, 17, 4]
    logits = random_logits()
    expected = logits.clone()
    for token, count in Counter(output).items():
        expected[0, token] -= 0.5 + 0.25 * count
    shape(logits, [Row(state_of([4, 17, 30], output, presence_penalty=0.5, frequency_penalty=0.25), 4)])
    assert torch.equal(logits, expected)
    negative = random_logits()
    shape(negative, [Row(state_of([1], [4], presence_penalty=-2.0), 1)])
    assert negative[0, 4] == random_logits()[0, 4] + 2.0


def test_bias_comes_before_the_repetition_penalty_and_that_before_the_others() -> None:
    logits = torch.zeros(1, VOCABULARY)
    bias, repetition = ((5, 3.0), (6, -3.0)), 2.0
    shape(
        logits,
        [Row(state_of([5, 6], [5], logit_bias=bias, repetition_penalty=repetition, presence_penalty=1.0), 1)],
    )
    assert logits[0, 5] == 3.0 / repetition - 1.0
    assert logits[0, 6] == -3.0 * repetition
    assert logits[0, 7] == 0.0


def test_stop_tokens_are_masked_before_min_tokens_and_only_then() -> None:
    state = state_of([1], [], min_tokens=3, stop_token_ids=frozenset({2, 7, VOCABULARY + 5}))
    for index in range(5):
        logits = torch.zeros(1, VOCABULARY)
        shape(logits, [Row(state, index)])
        masked = {at for at, value in enumerate(logits[0].tolist()) if value == -math.inf}
        assert masked == ({2, 7} if index < 3 else set())


def test_a_step_of_many_rows_shapes_each_by_its_own() -> None:
    states = [
        state_of([1, 2], [3], repetition_penalty=1.5),
        state_of([1, 2], [3]),
        state_of([1, 2], [3], logit_bias=((0, -5.0),), frequency_penalty=1.0),
        state_of([1, 2], [], min_tokens=1, stop_token_ids=frozenset({4})),
    ]
    together = random_logits(4)
    alone = random_logits(4)
    rows = [Row(state, index) for state, index in zip(states, (1, 1, 1, 0), strict=True)]
    shape(together, rows)
    for at, row in enumerate(rows):
        shape(alone[at : at + 1], [row])
    assert torch.equal(together, alone)
    assert torch.equal(together[1], random_logits(4)[1])


def test_greedy_follows_what_shaping_leaves() -> None:
    logits = random_logits()
    best, second = logits[0].topk(2).indices.tolist()
    plain, biased = (
        sample(logits, [Row(state_of([1], [], logit_bias=bias), 0)])[0].token for bias in ((), ((best, -100.0),))
    )
    assert (plain, biased) == (best, second)


def test_a_state_moves_only_with_accepted_tokens() -> None:
    state = state_of([1, 2], [], presence_penalty=1.0, repetition_penalty=1.1)
    sample(random_logits(), [Row(state, 0)])
    assert (state.counts, list(state.seen)) == ({}, [1, 2])
    state.accept(9)
    assert (state.counts, list(state.seen)) == ({9: 1}, [1, 2, 9])


def test_penalties_without_the_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="need the prompt's 3 tokens"):
        TokenState(SamplingParams(prompt_len=3, repetition_penalty=1.2))


def test_a_bias_outside_the_vocabulary_is_named() -> None:
    params = SamplingParams(prompt_len=1, logit_bias=((3, 1.0), (VOCABULARY, 1.0)))
    with pytest.raises(ValueError, match="token id 50; the vocabulary is 0 to 49"):
        params.check_ids(VOCABULARY)
