"""What a request computes does not depend on who runs beside it, on chunk sizes, or on a warm cache.

The bound, in fp32: logits agree to 5e-5 of their own spread, and so greedy tokens are equal wherever the two likeliest
are further apart than twice that. They are not bit-equal because a matrix product adds up its terms in another order
when the number of rows changes (blocks of a GEMM, padding of a decode group); each sum of n terms then differs by some
sqrt(n) roundings of 6e-8, and 30 layers of them make about 1e-5 (measured on SmolLM2-135M: 9e-6).
"""

import random
from typing import Any

import pytest
import torch

from headrace_core.scheduler.events import Request, ScheduledSeq, Started
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.loop.probe import probe
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.model.demo import ensure_demo_model
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.weights import find_source
from headrace_engine.sampling.params import SamplingParams

BOUND = 5e-5
BLOCK = 4


def runner_of(model: LoadedModel) -> ModelRunner:
    pool = make_pool(probe(model), num_blocks=500, block_size=BLOCK, device=model.device, dtype=model.dtype)
    return ModelRunner(model, pool, SdpaBackend())


def seq(name: str, start: int, ids: list[int], first_block: int, *, samples: bool = True) -> ScheduledSeq:
    return ScheduledSeq(
        request_id=name, start=start, token_ids=tuple(ids), block_table=tuple(range(first_block, first_block + 12)),
        samples=samples, is_prefill=True,
    )  # fmt: skip


def tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(250) for _ in range(count)]


def assert_same(got: torch.Tensor, alone: torch.Tensor) -> None:
    bound = BOUND * float(alone.std())
    assert float((got - alone).abs().max()) <= bound
    best, second = alone.topk(2).values.tolist()
    assert best - second <= 2 * bound or int(got.argmax()) == int(alone.argmax())


def check_logits(model: LoadedModel, prompt: list[int]) -> None:
    runner = runner_of(model)
    alone = runner.logits([seq("a", 0, prompt, 1)])[0]
    others = [seq(f"o{at}", 0, tokens(1 + at % 40, at), 20 + 12 * at) for at in range(31)]
    assert_same(runner.logits([*others[:15], seq("a", 0, prompt, 1), *others[15:]])[15], alone)
    for chunk in (1, 3, 8, 16):
        for start in range(0, len(prompt), chunk):
            end = min(start + chunk, len(prompt))
            mine = seq("a", start, prompt[start:end], 1, samples=end == len(prompt))
            logits = runner.logits([*others[:3], mine, *others[3:5]])
        assert_same(logits[3], alone)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt-oss-sinks"])
def test_logits_do_not_depend_on_neighbours_or_chunks(name: str, tiny: Any) -> None:
    check_logits(tiny(name), tokens(37, 5))


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_demo_models_logits_do_not_depend_on_neighbours_or_chunks() -> None:
    model = load_model(find_source(str(ensure_demo_model(print))), device=torch.device("cpu"), dtype=torch.float32)
    check_logits(model, model.tokenizer("The capital of France is Paris, and the river that flows")["input_ids"])


@pytest.mark.parametrize("chunk", [3, 16, None])
def test_greedy_tokens_are_the_same_alone_and_with_31_others(tiny: Any, engine: Any, chunk: int | None) -> None:
    """Whole outputs."""
    model = tiny("llama")
    prompts = [tokens(1 + at % 30, at) for at in range(32)]
    alone = [engine.run(*engine.make(model), [prompt], max_tokens=12)[0] for prompt in prompts[::8]]
    together = engine.run(*engine.make(model, num_blocks=900, prefill_chunk_size=chunk), prompts, max_tokens=12)
    assert together[::8] == alone


# A warm cache


@pytest.mark.parametrize("shared", range(6))
@pytest.mark.parametrize("chunk", [3, None])
def test_the_first_logits_after_a_hit_are_those_of_a_cold_run(
    shared: int, chunk: int | None, tiny: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of five blocks that shares 0 to 5 of them with an earlier one."""
    model = tiny("llama")
    first = tokens(5 * BLOCK, 1)
    prompt = first[: shared * BLOCK] + tokens(5 * BLOCK - shared * BLOCK, 2)
    results = {}
    for cached in (False, True):
        scheduler, runner = engine.make(model, enable_prefix_caching=cached, prefill_chunk_size=chunk)
        if cached:
            engine.run(scheduler, runner, [first], max_tokens=3)
        results[cached] = first_logits(scheduler, runner, prompt)
    (cold, none), (warm, hits) = results[False], results[True]
    assert none == 0
    # At least one token must be computed to have logits: of a prompt that is wholly known the last block is not used.
    assert hits == min(shared, 4) * BLOCK
    assert_same(warm, cold)


def first_logits(scheduler: Any, runner: ModelRunner, prompt: list[int]) -> tuple[torch.Tensor, int]:
    """The logits of the first new token, and how many tokens of the prompt were found in the cache."""
    scheduler.submit(Request(request_id="x", prompt_token_ids=tuple(prompt), max_tokens=1, arrival=0.0), 0.0)
    hits, now = -1, 0.0
    seen: list[torch.Tensor] = []
    real = runner.logits

    def watch(seqs: Any, also: Any = ()) -> torch.Tensor:
        logits = real(seqs, also)
        seen.append(logits)
        return logits

    runner.logits = watch  # type: ignore[method-assign]
    while (plan := scheduler.plan(now)) is not None:
        now += 1.0
        result = runner.run(plan, {"x": SamplingParams(prompt_len=len(prompt))})
        for outcome in scheduler.commit(plan, result, now):
            hits = outcome.cached_tokens if isinstance(outcome, Started) else hits
    return seen[-1][0], hits
