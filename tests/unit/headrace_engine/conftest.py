"""Tiny random models of several architectures, a byte-level tokenizer, and a driver without threads or HTTP."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_core.config import resolve
from headrace_core.events import Finished, Request, Token
from headrace_core.scheduler import Scheduler
from headrace_engine.attention import IMPLEMENTATION
from headrace_engine.kv_cache import make_pool
from headrace_engine.model import LoadedModel, wrap_model
from headrace_engine.probe import probe
from headrace_engine.runner import Runner
from headrace_engine.sampling import SamplingParams

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257}
GQA = SMALL | {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "max_position_embeddings": 512}
WINDOWED = GQA | {"sliding_window": 9}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**GQA),
    "qwen3": lambda: transformers.Qwen3Config(**GQA),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **WINDOWED, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    ),
    "gemma2-softcap": lambda: transformers.Gemma2Config(**WINDOWED, query_pre_attn_scalar=8),
    "gpt-oss-sinks": lambda: transformers.GptOssConfig(
        **WINDOWED, num_local_experts=2, num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"]
    ),
    "mistral-sliding": lambda: transformers.MistralConfig(**WINDOWED),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SMALL, intermediate_size=64, max_position_embeddings=512),
}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Every token is one byte, so any text splits in the middle of characters; then `<eos>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "<eos>"})
    return made


@pytest.fixture(scope="session")
def tiny(tokenizer: Any) -> Callable[[str], LoadedModel]:
    """A random model of an architecture of `CONFIGS`, made once."""
    made: dict[str, LoadedModel] = {}

    def make(name: str) -> LoadedModel:
        if name not in made:
            torch.manual_seed(7)
            module = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=IMPLEMENTATION)
            made[name] = wrap_model(module, tokenizer, name=name)
        return made[name]

    return make


def make_engine(model: LoadedModel, *, num_blocks: int = 400, block_size: int = 4, **knobs: Any) -> Any:
    """A scheduler and a runner over one pool."""
    layers = probe(model)
    pool = make_pool(layers, num_blocks=num_blocks, block_size=block_size, device=model.device, dtype=model.dtype)
    config = resolve({"block_size": block_size} | knobs)
    room = min(model.max_position, (num_blocks - 1) * block_size)
    return Scheduler(config, num_blocks=num_blocks, max_model_len=room), Runner(model, pool)


def run_all(
    scheduler: Scheduler, runner: Runner, prompts: Sequence[Sequence[int]], *, max_tokens: int,
    params: Sequence[SamplingParams] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Submit all at once, step until all ended; the output ids of each."""
    chosen = params or [SamplingParams(prompt_len=len(prompt)) for prompt in prompts]
    by_id = {str(at): param for at, param in enumerate(chosen)}
    outputs: dict[str, list[int]] = {name: [] for name in by_id}
    for at, prompt in enumerate(prompts):
        request = Request(request_id=str(at), prompt_token_ids=tuple(prompt), max_tokens=max_tokens, arrival=0.0)
        scheduler.submit(request, 0.0)
    now = 0.0
    while (plan := scheduler.plan(now)) is not None:
        now += 1.0
        result = runner.run(plan, by_id)
        for outcome in scheduler.commit(plan, result, now):
            if isinstance(outcome, Token):
                outputs[outcome.request_id].append(outcome.token_id)
            assert not isinstance(outcome, Finished) or outcome.reason == "length"
    return [outputs[str(at)] for at in range(len(prompts))]


def plain_greedy(model: LoadedModel, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """transformers' own generate with its own attention."""
    model.module.set_attn_implementation("eager")
    try:
        ids = torch.tensor([list(prompt)])
        out = model.module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, min_new_tokens=max_tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    finally:
        model.module.set_attn_implementation(IMPLEMENTATION)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def engine() -> Any:
    """The functions of this file, for tests."""
    from types import SimpleNamespace

    return SimpleNamespace(make=make_engine, run=run_all, plain=plain_greedy, architectures=tuple(CONFIGS))
