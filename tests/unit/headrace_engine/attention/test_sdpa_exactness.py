"""Greedy output in fp32 equals transformers' own generate, however the requests are batched, chunked and preempted."""

import random
from typing import Any

import pytest
import torch

from headrace_engine.model.demo import ensure_demo_model
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.weights import find_source
from headrace_engine.sampling.params import SamplingParams

ARCHITECTURES = ("llama", "qwen3", "gemma3", "gemma2-softcap", "gpt-oss-sinks", "mistral-sliding", "gpt_neox")


def prompts_of(count: int, vocab: int, *, longest: int, seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(draw.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_every_architecture_in_chunks_equals_generate(name: str, chunk: int, tiny: Any, engine: Any) -> None:
    model = tiny(name)
    prompts = prompts_of(5, 250, longest=40)
    scheduler, runner = engine.make(model, max_num_batched_tokens=64, prefill_chunk_size=chunk, max_num_seqs=4)
    got = engine.run(scheduler, runner, prompts, max_tokens=8)
    assert got == [engine.plain(model, prompt, 8) for prompt in prompts]


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_any_batch_and_block_size_equals_generate(count: int, block_size: int, tiny: Any, engine: Any) -> None:
    model = tiny("llama")
    prompts = prompts_of(count, 250, longest=60, seed=count)
    scheduler, runner = engine.make(model, num_blocks=1500 // block_size + 2, block_size=block_size)
    got = engine.run(scheduler, runner, prompts, max_tokens=10)
    assert got == [engine.plain(model, prompt, 10) for prompt in prompts]


def test_tiles_of_a_long_chunk_equal_generate(tiny: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_engine.attention.tiles.TILE", 7)
    model = tiny("gemma3")
    prompts = prompts_of(3, 250, longest=60)
    scheduler, runner = engine.make(model)
    assert engine.run(scheduler, runner, prompts, max_tokens=6) == [engine.plain(model, one, 6) for one in prompts]


def test_preemption_changes_no_token(tiny: Any, engine: Any) -> None:
    model = tiny("llama")
    prompts = prompts_of(6, 250, longest=30, seed=3)
    scheduler, runner = engine.make(model, num_blocks=22, max_num_batched_tokens=32)
    got = engine.run(scheduler, runner, prompts, max_tokens=40)
    assert scheduler.stats().preemptions > 0
    assert got == [engine.plain(model, prompt, 40) for prompt in prompts]
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total


def test_a_seed_gives_the_same_text_alone_in_a_batch_and_after_preemption(tiny: Any, engine: Any) -> None:
    model = tiny("llama")
    prompts = prompts_of(6, 250, longest=30, seed=3)
    params = [
        SamplingParams(prompt_len=len(prompt), temperature=1.0, top_p=0.9, top_k=40 * (at % 2), seed=f"s{at}")
        for at, prompt in enumerate(prompts)
    ]
    together = engine.run(*engine.make(model, num_blocks=22), prompts, max_tokens=40, params=params)
    alone = [
        engine.run(*engine.make(model), [prompt], max_tokens=40, params=[param])[0]
        for prompt, param in zip(prompts, params, strict=True)
    ]
    assert together == alone
    assert len({tuple(ids) for ids in together}) == len(prompts)


@pytest.mark.parametrize("blocks", [400, 22])
@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_the_repetition_penalty_equals_generate(penalty: float, blocks: int, tiny: Any, engine: Any) -> None:
    model = tiny("llama")
    prompts = prompts_of(4, 250, longest=30, seed=3)
    params = [SamplingParams(prompt_len=len(prompt), repetition_penalty=penalty) for prompt in prompts]
    scheduler, runner = engine.make(model, num_blocks=blocks, max_num_batched_tokens=32)
    got = engine.run(scheduler, runner, prompts, max_tokens=40, params=params)
    assert blocks > 22 or scheduler.stats().preemptions > 0
    assert got == [engine.plain(model, prompt, 40, repetition_penalty=penalty) for prompt in prompts]
    assert got != [engine.plain(model, prompt, 40) for prompt in prompts]


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    folder = ensure_demo_model(print)
    return load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)


TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived an old fisherman who every morning would row out and",
)


@pytest.fixture(scope="module")
def expected(demo: LoadedModel, engine: Any) -> tuple[list[list[int]], list[list[int]]]:
    prompts = [demo.tokenizer(text)["input_ids"] for text in TEXTS]
    return prompts, [engine.plain(demo, prompt, 24) for prompt in prompts]


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("count", "chunk", "blocks"), [(1, 16, 200), (4, 64, 200), (16, None, 400), (16, 16, 20)])
def test_the_demo_model_equals_generate(
    count: int, chunk: int | None, blocks: int, *, demo: LoadedModel, expected: Any, engine: Any
) -> None:
    prompts, outputs = expected
    scheduler, runner = engine.make(demo, num_blocks=blocks, block_size=16, prefill_chunk_size=chunk)
    wanted = [at % len(prompts) for at in range(count)]
    got = engine.run(scheduler, runner, [prompts[at] for at in wanted], max_tokens=24)
    assert got == [outputs[at] for at in wanted]
    assert blocks > 20 or scheduler.stats().preemptions > 0
