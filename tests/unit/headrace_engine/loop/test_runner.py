"""One step: forks, copies of blocks, scores of prompts, and failures of single requests. On hand-made plans."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headrace_core.scheduler.events import ScheduledSeq, StepPlan
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.loop.probe import probe
from headrace_engine.loop.runner import CopyError, ModelRunner
from headrace_engine.outputs import RequestProblem
from headrace_engine.sampling.logprobs import NOT_NUMBERS
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.token_state import TokenState

BLOCK = 4
PROMPT = tuple(random.Random(1).randrange(256) for _ in range(10))


@pytest.fixture
def runner(tiny: Any) -> ModelRunner:
    model = tiny("llama")
    pool = make_pool(probe(model), num_blocks=40, block_size=BLOCK, device=model.device, dtype=model.dtype)
    return ModelRunner(model, pool, SdpaBackend())


def seq(name: str, start: int, ids: Sequence[int], table: Sequence[int], **more: Any) -> ScheduledSeq:
    return ScheduledSeq(
        request_id=name, start=start, token_ids=tuple(ids), block_table=tuple(table),
        **{"samples": True, "is_prefill": True} | more,
    )  # fmt: skip


def plan_of(*seqs: ScheduledSeq, copies: tuple[tuple[int, int], ...] = ()) -> StepPlan:
    return StepPlan(step=1, generation=1, seqs=seqs, copies=copies)


def state(prompt: Sequence[int] = PROMPT, **options: Any) -> TokenState:
    return TokenState(SamplingParams(prompt_len=len(prompt), **options), tuple(prompt))


# Copies of blocks


def test_a_copied_block_serves_as_the_original(runner: ModelRunner) -> None:
    runner.run(plan_of(seq("a", 0, PROMPT, (1, 2, 3))), {"a": state()})
    shared = plan_of(
        seq("a", 10, [7], (1, 2, 3), is_prefill=False), seq("b", 10, [8], (1, 2, 9), is_prefill=False),
        copies=((3, 9),),
    )  # fmt: skip
    together = runner.run(shared, {"a": state(), "b": state()})
    for name, token in (("a", 7), ("b", 8)):
        whole = runner.run(plan_of(seq(name, 0, (*PROMPT, token), (20, 21, 22))), {name: state()})
        assert together.tokens[name] == whole.tokens[name]


def test_a_copy_that_fails_has_its_own_error(runner: ModelRunner) -> None:
    with pytest.raises(CopyError, match="copying 1 KV blocks failed"):
        runner.run(plan_of(seq("a", 0, PROMPT, (1, 2, 3)), copies=((1, 999),)), {"a": state()})


# Forks


def assert_same_score(got: Any, alone: Any) -> None:
    """Equal tokens, and log-probabilities equal within fp32's precision: kernels may sum by the batch's shape."""
    assert (got.token_id, [token for token, _ in got.top]) == (alone.token_id, [token for token, _ in alone.top])
    assert got.logprob == pytest.approx(alone.logprob, abs=1e-5)
    assert [value for _, value in got.top] == pytest.approx([value for _, value in alone.top], abs=1e-5)


def test_forks_sample_from_their_siblings_row_with_their_own_parameters(runner: ModelRunner) -> None:
    options = [
        {}, {"temperature": 1.0, "seed": "b"}, {"temperature": 1.0, "seed": "c", "top_k": 40, "logprobs": 2},
        {"logit_bias": ((5, 100.0),)},
    ]  # fmt: skip
    names = ["a", "b", "c", "d"]
    states = {name: state(**option) for name, option in zip(names, options, strict=True)}
    other = seq("z", 0, PROMPT[:3], (30,))
    first = seq("a", 0, PROMPT, (1, 2, 3))
    forks = [seq(name, 10, (), (1, 2, 3), fork_of="a") for name in names[1:]]
    states["z"] = state(PROMPT[:3])
    got = runner.run(plan_of(first, *forks, other), states)
    assert not got.failed
    for name in names:
        alone = runner.run(plan_of(seq(name, 0, PROMPT, (20, 21, 22))), {name: states[name]})
        assert got.tokens[name] == alone.tokens[name]
    assert got.tokens["d"] == 5
    alone = runner.run(plan_of(seq("c", 0, PROMPT, (20, 21, 22))), {"c": states["c"]})
    assert_same_score(got.scores["c"], alone.scores["c"])
    assert got.tokens["z"] == runner.run(plan_of(other), {"z": states["z"]}).tokens["z"]


def test_logits_repeat_the_siblings_row_for_each_fork(runner: ModelRunner) -> None:
    seqs = [seq("a", 0, PROMPT, (1, 2, 3)), seq("b", 10, (), (1, 2, 3), fork_of="a"), seq("c", 0, [5, 6], (8,))]
    logits = runner.logits(seqs)
    assert logits.shape == (3, runner.model.vocab_size)
    assert torch.equal(logits[0], logits[1])
    assert torch.allclose(logits[2], runner.logits([seqs[2]])[0], atol=1e-5)


# Prompt scores


def scores_in_chunks(runner: ModelRunner, sizes: Sequence[int], top: int = 3) -> list[Any]:
    """Drive one prompt in chunks of `sizes`, as the loop does."""
    owner, found, start = state(prompt_logprobs=top), [], 0
    for size in sizes:
        ids = PROMPT[start : start + size]
        chunk = seq("a", start, ids, (1, 2, 3), samples=start + size == len(PROMPT))
        output = runner.run(plan_of(seq("z", 0, [1, 2], (30,)), chunk), {"a": owner, "z": state([1, 2])})
        assert ("a" in output.tokens) == chunk.samples
        found += output.prompt_scores.get("a", ())
        owner.prompt_scored = len(found)
        start += size
    return found


@pytest.mark.parametrize("sizes", [(10,), (2, 2, 2, 2, 2), (9, 1), (1,) * 10, (4, 6)])
def test_prompt_scores_come_in_order_for_each_token_but_the_first(runner: ModelRunner, sizes: tuple[int, ...]) -> None:
    """A prompt in five chunks has one first token, and p - 1 scores in order."""
    scores = scores_in_chunks(runner, sizes)
    assert [score.token_id for score in scores] == list(PROMPT[1:])
    runner.model.module.set_attn_implementation("eager")
    try:
        plain = runner.model.module(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, :-1, :257]
    finally:
        runner.model.module.set_attn_implementation("headrace_paged")
    expected = plain.double().log_softmax(-1)
    for at, score in enumerate(scores):
        assert score.logprob == pytest.approx(float(expected[at, PROMPT[at + 1]]), abs=1e-4)
        assert [token for token, _ in score.top] == expected[at].topk(3).indices.tolist()


def test_a_prompt_that_is_computed_again_is_scored_once(runner: ModelRunner) -> None:
    owner = state(prompt_logprobs=0)
    first = runner.run(plan_of(seq("a", 0, PROMPT[:6], (1, 2), samples=False)), {"a": owner})
    owner.prompt_scored = 6
    assert len(first.prompt_scores["a"]) == 6
    # Preempted: all again, in other chunks, and with tokens of the output behind the prompt.
    again = runner.run(plan_of(seq("a", 0, PROMPT[:4], (1,), samples=False)), {"a": owner})
    assert again.prompt_scores == {}
    last = runner.run(plan_of(seq("a", 4, (*PROMPT[4:], 77, 78), (1, 2, 3))), {"a": owner})
    assert [score.token_id for score in last.prompt_scores["a"]] == list(PROMPT[7:])
    assert "a" in last.tokens


def test_a_prompt_of_one_token_has_no_scores(runner: ModelRunner) -> None:
    output = runner.run(plan_of(seq("a", 0, [5], (1,))), {"a": state([5], prompt_logprobs=1)})
    assert (output.prompt_scores, output.failed) == ({}, frozenset())


def test_a_cache_hit_in_a_scored_prompt_fails_the_request_with_the_cure(runner: ModelRunner) -> None:
    both = {"a": state(prompt_logprobs=1), "b": state()}
    output = runner.run(plan_of(seq("a", 4, PROMPT[4:], (1, 2, 3)), seq("b", 0, PROMPT, (5, 6, 7))), both)
    assert output.failed == {"a"}
    assert "reads_cache=False" in str(output.problems["a"])
    assert "b" in output.tokens


def test_only_the_rows_that_are_scored_pay_for_logits(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    real = runner.model.module.forward

    def forward(**inputs: Any) -> Any:
        kept.append(len(inputs["logits_to_keep"]))
        return real(**inputs)

    monkeypatch.setattr(runner.model.module, "forward", forward)
    runner.run(plan_of(seq("a", 0, PROMPT, (1, 2, 3))), {"a": state(logprobs=5)})
    runner.run(plan_of(seq("a", 0, PROMPT, (1, 2, 3), samples=False)), {"a": state()})
    runner.run(plan_of(seq("a", 0, PROMPT, (1, 2, 3))), {"a": state(prompt_logprobs=0)})
    assert kept == [1, 0, 10]


# Failures stay with their request


def test_a_row_of_nan_fails_its_request_and_its_forks_alone(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ModelRunner.logits

    def poisoned(self: ModelRunner, seqs: Any, also: Any = ()) -> torch.Tensor:
        logits = real(self, seqs, also).clone()
        logits[[0, 1], 3] = math.nan
        return logits

    monkeypatch.setattr(ModelRunner, "logits", poisoned)
    seqs = (
        seq("a", 0, PROMPT, (1, 2, 3)), seq("b", 10, (), (1, 2, 3), fork_of="a"), seq("c", 0, PROMPT, (5, 6, 7)),
    )  # fmt: skip
    output = runner.run(plan_of(*seqs), {"a": state(), "b": state(temperature=1.0), "c": state(temperature=1.0)})
    assert output.failed == {"a", "b"}
    assert set(output.tokens) == {"c"}
    assert set(output.problems.values()) == {NOT_NUMBERS}


def test_sampling_that_raises_fails_its_request_alone(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: str, index: int) -> float:
        if seed == "bad":
            raise RuntimeError("injected")
        return 0.5

    monkeypatch.setattr("headrace_engine.sampling.sampler.uniform", broken)
    seqs = [seq(name, 0, PROMPT, table) for name, table in (("a", (1, 2, 3)), ("b", (5, 6, 7)), ("c", (8, 9, 10)))]
    output = runner.run(
        plan_of(*seqs), {"a": state(temperature=1.0), "b": state(temperature=1.0, seed="bad"), "c": state()}
    )
    assert output.problems == {"b": RequestProblem("sampling failed: RuntimeError: injected")}
    assert set(output.tokens) == {"a", "c"}


def test_nan_in_a_prompts_scores_fails_it_alone(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModelRunner.logits

    def poisoned(self: ModelRunner, seqs: Any, also: Any = ()) -> torch.Tensor:
        logits = real(self, seqs, also).clone()
        logits[-1] = math.nan
        return logits

    monkeypatch.setattr(ModelRunner, "logits", poisoned)
    seqs = (seq("b", 0, PROMPT, (5, 6, 7)), seq("a", 0, PROMPT, (1, 2, 3)))
    output = runner.run(plan_of(*seqs), {"a": state(prompt_logprobs=1), "b": state()})
    assert "not numbers" in str(output.problems["a"])
    assert set(output.tokens) == {"b"}
