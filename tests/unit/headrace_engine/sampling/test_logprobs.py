"""Scores come from raw logits, are exact, in order, and always finite."""

import json
import math

import pytest
import torch

from headrace_engine.sampling import row_slices
from headrace_engine.sampling.logprobs import LOWEST_LOGPROB, NotNumbersError, score_rows
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import sample
from headrace_engine.sampling.token_state import Row, TokenState


def test_scores_are_log_softmax_with_rank_and_the_likeliest() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    tokens = [3, 7, 0, 39, 12]
    expected = logits.double().log_softmax(-1)
    for at, score in enumerate(score_rows(logits, tokens, top=[0, 1, 2, 40, 60])):
        assert score.token_id == tokens[at]
        assert score.logprob == pytest.approx(float(expected[at, tokens[at]]), abs=1e-5)
        assert score.rank == 1 + int((expected[at] > expected[at, tokens[at]]).sum())
        count = [0, 1, 2, 40, 40][at]
        assert [token for token, _ in score.top] == expected[at].topk(count).indices.tolist()
        assert all(value == pytest.approx(float(expected[at, token]), abs=1e-5) for token, value in score.top)


def test_half_precision_logits_are_scored_in_fp32() -> None:
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(1)).bfloat16()
    (score,) = score_rows(logits, [5], top=[0])
    assert score.logprob == pytest.approx(float(logits.double().log_softmax(-1)[0, 5]), abs=1e-5)


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 30, generator=torch.Generator().manual_seed(1))
    tokens, top = list(range(9)), [2] * 9
    whole = score_rows(logits, tokens, top=top)
    monkeypatch.setattr(row_slices, "CPU_NUMBERS", 60)
    assert score_rows(logits, tokens, top=top) == whole


def test_masked_tokens_score_finite_numbers() -> None:
    """Minus infinity among the likeliest must not make invalid JSON."""
    logits = torch.tensor([[0.0, -math.inf, 1.0, -math.inf]])
    for token in range(4):
        (score,) = score_rows(logits, [token], top=[4])
        values = [score.logprob, *(value for _, value in score.top)]
        assert all(math.isfinite(value) for value in values)
        json.loads(json.dumps(values, allow_nan=False))
        assert [value for _, value in score.top][2:] == [LOWEST_LOGPROB] * 2
    assert score_rows(logits, [1], top=[0])[0].rank == 3


def test_ties_are_listed_by_id_and_share_their_rank() -> None:
    (score,) = score_rows(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), [2], top=[3])
    assert [token for token, _ in score.top] == [1, 2, 0]
    assert score.rank == 1


def test_nan_gives_an_error_instead_of_a_score() -> None:
    with pytest.raises(NotNumbersError):
        score_rows(torch.tensor([[0.0, math.nan]]), [0], top=[0])


def test_the_sampled_token_is_scored_before_bias_and_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])

    def row(**options: object) -> Row:
        params = SamplingParams(prompt_len=1, **options)  # type: ignore[arg-type]
        return Row(TokenState(params, (0,)), 0)

    biased, quiet, greedy = sample(
        logits, [row(logit_bias=((0, 50.0),), logprobs=1, temperature=1.0), row(), row(logprobs=0)]
    )
    assert biased.score is not None
    assert biased.token == 0
    assert biased.score.logprob == pytest.approx(float(logits[0].log_softmax(-1)[0]))
    assert (biased.score.rank, [token for token, _ in biased.score.top]) == (3, [2])
    assert quiet.score is None
    assert greedy.score is not None
    assert (greedy.score.token_id, greedy.score.rank, greedy.score.top) == (2, 1, ())
