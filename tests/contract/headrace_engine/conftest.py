"""The real server on a free loopback port, over a tiny random model whose every token is one byte."""

import asyncio
import contextlib
import copy
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import resolve
from headrace_engine.engine import Engine, assemble, load
from headrace_engine.http.listener import bind, http_server
from headrace_engine.http.state import ServerState
from headrace_engine.model.generation import OPENAIS, SuggestedSampling
from headrace_engine.model.weights import find_source
from headrace_engine.server import admin_app, serving_app

TOKEN = "s3cret"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}assistant:"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=TEMPLATE)
    tokenizer.add_special_tokens({"eos_token": "<eos>"})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    # Some vocabulary ids have no token.
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=320, max_position_embeddings=2048, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> Any:
    return load(find_source(str(model_folder)), resolve({"dtype": "float32"}), device=torch.device("cpu"))


@dataclass
class Served:
    """A running server and a client for each of its ports."""

    engine: Engine
    state: ServerState
    http: httpx.AsyncClient
    admin: httpx.AsyncClient
    url: str

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.http.post(
            "/v1/completions", json={"prompt": "hello", "max_tokens": 4, "temperature": 0} | body
        )

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return await self.http.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 4, "temperature": 0} | body
        )

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        answer = await self.http.post(path, json=body | {"stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, last, nothing = answer.text.split("\n\n")
        assert (last, nothing) == ("data: [DONE]", "")
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def text_of(self, **body: Any) -> str:
        """A prompt as the engine gets it: tokenized and decoded again."""
        tokens = (await self.http.post("/tokenize", json=body)).json()["tokens"]
        return str((await self.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"])

    async def idle(self) -> None:
        """Wait until no request is alive; the test's time-out is the limit."""
        while self.engine.loop.stats.running or self.engine.loop.stats.waiting:
            await asyncio.sleep(0.005)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        families = self.engine.metrics.registry.collect()
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@pytest.fixture
async def serve(loaded: Any) -> AsyncIterator[Callable[..., Any]]:
    """Start a server; its knobs as keywords."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *, slo: SloSet | None = None, token: str | None = TOKEN, http: dict[str, Any] | None = None,
            template: str | None = None, record: Path | None = None, sampling: SuggestedSampling = OPENAIS,
            **knobs: Any,
        ) -> Served:  # fmt: skip
            # `http`: keys, traces, keep_content, clock, tool_call_parser, origins, max_bytes, stall_seconds or
            # head_seconds of the HTTP side.
            # `template`: another chat template than the model's own; "" for none.
            model, layers = loaded
            if template is not None:
                tokenizer = copy.deepcopy(model.tokenizer)
                tokenizer.chat_template = template or None
                model = replace(model, tokenizer=tokenizer)
            engine = assemble(
                model, layers, resolve(knobs), served_name="tiny", revision="r1", slo=slo, record=record,
                sampling=sampling,
            )  # fmt: skip
            running = _running(engine, token=token, http=http or {})
            return await stack.enter_async_context(running)

        yield start


@contextlib.asynccontextmanager
async def _running(engine: Engine, *, token: str | None, http: dict[str, Any]) -> AsyncIterator[Served]:
    of_server = {name: http.pop(name) for name in ("head_seconds",) if name in http}
    of_state = ("keep_content", "clock", "tool_call_parser")
    state = ServerState("tiny", **{name: http.pop(name) for name in of_state if name in http})
    sockets = [bind("127.0.0.1", 0, "--port") for _ in range(2)]
    apps = (serving_app(state, **http), admin_app(state, token=token, loopback=token is not None))
    servers = [http_server(app, **of_server) for app in apps]
    tasks = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
    engine.loop.start()
    state.ready(engine)
    urls = [f"http://127.0.0.1:{_port(sock)}" for sock in sockets]
    # Long time-outs: a test should fail by its own time-out, not because the machine is busy.
    clients = [httpx.AsyncClient(base_url=url, timeout=None) for url in urls]
    async with clients[0] as client, clients[1] as admin_client:
        while not all(server.started for server in servers):
            await asyncio.sleep(0.005)
        try:
            yield Served(engine, state, client, admin_client, urls[0])
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
            await engine.loop.stop()


class Gate:
    """Lets the step thread take one step per permit; `plans` has the steps begun, of which the last may be waiting."""

    def __init__(self, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Any] = []
        self._permits, self._is_open = 0, False
        self._changed = threading.Condition()
        real = server.engine.runner.run

        def run(plan: Any, *rest: Any) -> Any:
            with self._changed:
                self.plans.append(plan)
                self._changed.wait_for(lambda: self._is_open or self._permits > 0)
                self._permits -= 1
            return real(plan, *rest)

        monkeypatch.setattr(server.engine.runner, "run", run)

    def let(self, steps: int) -> None:
        """Permit so many more steps."""
        self._set(self._permits + steps)

    def shut(self) -> None:
        """Take back permits that were not used."""
        self._set(0)

    def open(self) -> None:
        """Permit all steps to come."""
        self._set(0, is_open=True)

    def _set(self, permits: int, *, is_open: bool = False) -> None:
        with self._changed:
            self._permits, self._is_open = permits, is_open
            self._changed.notify_all()

    async def begun(self, steps: int) -> None:
        """Wait until so many steps have begun in all; the test's time-out is the limit."""
        while len(self.plans) < steps:
            await asyncio.sleep(0.002)


@pytest.fixture
def gate(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Served], Gate]]:
    """Put a gate before the steps of a server."""
    del serve  # a server can only end behind an open gate
    made: list[Gate] = []

    def make(server: Served) -> Gate:
        made.append(Gate(server, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        each.open()


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])
