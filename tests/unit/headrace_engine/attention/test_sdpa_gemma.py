"""The second real model: Gemma 3 with its sliding windows, token-exact with transformers' own generate in fp32."""

from typing import Any

import pytest
import torch

from headrace_engine.errors import ModelError
from headrace_engine.model.demo import ensure_demo_model, has_demo_model
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.weights import find_source

NAME = "gemma3-270m"
BOS, TURN_START, TURN_END, NEWLINE = 2, 105, 106, 107
# The making of the model, where it is not in the cache, takes minutes.
pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def gemma() -> LoadedModel:
    try:
        folder = ensure_demo_model(print, NAME)
    except ModelError as error:
        pytest.skip(f"not in the cache, and: {error}")
    return load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)


def test_it_knows_its_bos_turns_and_ends(gemma: LoadedModel) -> None:
    assert has_demo_model(NAME)
    tokenizer = gemma.tokenizer
    assert tokenizer("The sea")["input_ids"] == [BOS, 818, 5442]
    talk = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[:2] == [BOS, TURN_START]
    assert ids[-5:] == [TURN_END, NEWLINE, TURN_START, tokenizer.convert_tokens_to_ids("model"), NEWLINE]
    assert gemma.eos_token_ids == {1, TURN_END}
    assert (gemma.vocab_size, gemma.holes, gemma.max_position) == (262_144, None, 32_768)


def test_greedy_output_equals_generate_even_beyond_the_window(gemma: LoadedModel, engine: Any) -> None:
    encode = gemma.tokenizer
    story = "The old fisherman rowed out every morning before the sun came up over the harbour. " * 40
    prompts = [
        encode("The capital of France is")["input_ids"],
        encode(story)["input_ids"],
        encode("def fibonacci(n):\n    ")["input_ids"],
    ]
    assert len(prompts[1]) > gemma.module.config.sliding_window + 100
    expected = [engine.plain(gemma, prompt, 12) for prompt in prompts]
    scheduler, runner = engine.make(gemma, num_blocks=100, block_size=16, prefill_chunk_size=200)
    assert engine.run(scheduler, runner, prompts, max_tokens=12) == expected
    assert "if n == 0:" in gemma.tokenizer.decode(expected[2])  # it has learnt something
