"""Tiny random models of several architectures, a byte-level tokenizer, and drivers: without threads, and the loop."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import Finished, Request, Token
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace.history import History
from headrace_engine import device as devices
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.loop.engine_loop import EngineLoop
from headrace_engine.loop.live_request import LiveRequest
from headrace_engine.loop.probe import probe
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.model.loading import LoadedModel, wrap_model
from headrace_engine.outputs import Done, Event
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.token_state import TokenState
from headrace_engine.text.detokenize import TextStream

sys.path.insert(0, str(Path(__file__).parent))  # for the doubles of this folder: test folders are not packages


@pytest.fixture(autouse=True)
def _auto_dtype_is_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What takes the machine's own dtype runs under each that a machine may have: `make dtypes` goes by the mark."""
    asked: list[str] = []
    real = devices.pick_dtype

    def pick(knob: str, *rest: Any) -> torch.dtype:
        asked.append(knob)
        return real(knob, *rest)

    monkeypatch.setattr(devices, "pick_dtype", pick)
    yield
    if "auto" in asked and request.node.get_closest_marker("auto_dtype") is None:
        pytest.fail("dtype auto differs by machine: state the dtype that the test means, or mark it auto_dtype")


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


def make_engine(
    model: LoadedModel, *, num_blocks: int = 400, block_size: int = 4, observer: History | None = None, **knobs: Any
) -> Any:
    """A scheduler and a runner over one pool."""
    layers = probe(model)
    pool = make_pool(layers, num_blocks=num_blocks, block_size=block_size, device=model.device, dtype=model.dtype)
    config = resolve({"block_size": block_size} | knobs)
    room = min(model.max_position, (num_blocks - 1) * block_size)
    scheduler = Scheduler(config, num_blocks=num_blocks, max_model_len=room, observer=observer)
    scheduler.expect([1] * 8, 0.0)  # admission foresees less output than comes, so that a small pool preempts
    return scheduler, ModelRunner(model, pool, SdpaBackend())


def run_all(
    scheduler: Scheduler, runner: ModelRunner, prompts: Sequence[Sequence[int]], *, max_tokens: int,
    params: Sequence[SamplingParams] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Submit all at once, step until all ended; the output ids of each."""
    chosen = params or [SamplingParams(prompt_len=len(prompt)) for prompt in prompts]
    by_id = {str(at): TokenState(param, tuple(prompts[at])) for at, param in enumerate(chosen)}
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
                by_id[outcome.request_id].accept(outcome.token_id)
            assert not isinstance(outcome, Finished) or outcome.reason == "length"
    return [outputs[str(at)] for at in range(len(prompts))]


def plain_greedy(model: LoadedModel, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[int]:
    """transformers' own generate with its own attention; `options` are generate's."""
    model.module.set_attn_implementation("eager")
    try:
        ids = torch.tensor([list(prompt)])
        out = model.module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, min_new_tokens=max_tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0, **options,
        )  # fmt: skip
    finally:
        model.module.set_attn_implementation(IMPLEMENTATION)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def engine() -> Any:
    """The functions of this file, for tests."""
    from types import SimpleNamespace

    return SimpleNamespace(
        make=make_engine, run=run_all, plain=plain_greedy, architectures=tuple(CONFIGS), sink=QueueSink
    )


class QueueSink:
    """Keeps the events of one generation for the test."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, index: int, event: Event) -> None:
        assert index == 0
        self.events.put_nowait(event)


@dataclass
class Looped:
    """An engine loop over a tiny model, with a short way to submit and to collect."""

    loop: EngineLoop
    scheduler: Scheduler
    runner: ModelRunner
    metrics: EngineMetrics
    tokenizer: Any
    sinks: dict[str, QueueSink] = field(default_factory=dict)

    def request(
        self, name: str, prompt: Sequence[int] = (1, 2, 3), *, max_tokens: int = 8, text: dict[str, Any] | None = None,
        request: dict[str, Any] | None = None, **params: Any,
    ) -> LiveRequest:  # fmt: skip
        """A request; `text`, `request` and the rest are options of TextStream, Request and SamplingParams."""
        self.sinks[name] = QueueSink()
        return LiveRequest(
            Request(
                request_id=name, prompt_token_ids=tuple(prompt), max_tokens=max_tokens, arrival=0.0, **request or {}
            ),
            SamplingParams(prompt_len=len(prompt), **params),
            TextStream(self.tokenizer, prompt, **{"stops": [], "incremental": True} | (text or {})),
            sink=self.sinks[name],
            eos_token_ids=self.runner.model.eos_token_ids,
        )

    async def submit(self, name: str, *prompt: Sequence[int], **options: Any) -> None:
        await self.loop.submit([self.request(name, *prompt, **options)])

    async def collect(self, name: str) -> list[Event]:
        """All events of a request."""
        events: list[Event] = []
        while not events or not isinstance(events[-1], Done):
            events.append(await self.sinks[name].events.get())
        return events

    async def run(self, name: str, *prompt: Sequence[int], **options: Any) -> list[Event]:
        await self.submit(name, *prompt, **options)
        return await self.collect(name)

    async def idle(self) -> None:
        """Wait until no request is alive; the test's time-out is the limit."""
        while self.loop.stats.running or self.loop.stats.waiting:
            await asyncio.sleep(0.002)


@pytest.fixture
async def looped(tiny: Callable[[str], LoadedModel], tokenizer: Any) -> AsyncIterator[Callable[..., Looped]]:
    """Start a loop; its knobs as keywords."""
    started: list[Looped] = []

    def start(name: str = "llama", **knobs: Any) -> Looped:
        history, metrics = History(), EngineMetrics("tiny", None)
        scheduler, runner = make_engine(tiny(name), observer=history, **knobs)
        loop = EngineLoop(scheduler, runner, metrics, history=history, revision="r1")
        made = Looped(loop, scheduler, runner, metrics, tokenizer)
        made.loop.start()
        started.append(made)
        return made

    yield start
    for each in started:
        await each.loop.stop()
