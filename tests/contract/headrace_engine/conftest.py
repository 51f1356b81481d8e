"""The real server on a free loopback port, over a tiny random model whose every token is one byte."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_core.config import resolve
from headrace_core.slo import SloSet
from headrace_engine import http_errors
from headrace_engine.admin import admin_router
from headrace_engine.engine import Engine, assemble, load
from headrace_engine.server import _http_server, bind, serving_app
from headrace_engine.state import ServerState

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
    # Some rows of the vocabulary belong to no token.
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=320, max_position_embeddings=2048, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> Any:
    return load(str(model_folder), resolve({"dtype": "float32"}), device=torch.device("cpu"))


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

        async def start(*, slo: SloSet | None = None, token: str | None = TOKEN, **knobs: Any) -> Served:
            return await stack.enter_async_context(_running(loaded, slo=slo, token=token, knobs=knobs))

        yield start


@contextlib.asynccontextmanager
async def _running(
    loaded: Any, *, slo: SloSet | None, token: str | None, knobs: dict[str, Any]
) -> AsyncIterator[Served]:
    model, layers = loaded
    engine = assemble(model, layers, resolve(knobs), served_name="tiny", revision="r1", slo=slo)
    state = ServerState("tiny")
    from fastapi import FastAPI

    admin = FastAPI()
    http_errors.install(admin)
    admin.include_router(admin_router(state, token=token, loopback=token is not None, slo=slo))
    sockets = [bind("127.0.0.1", 0, "--port") for _ in range(2)]
    servers = [_http_server(serving_app(state)), _http_server(admin)]
    tasks = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
    engine.loop.start()
    state.ready(engine)
    urls = [f"http://127.0.0.1:{_port(sock)}" for sock in sockets]
    async with httpx.AsyncClient(base_url=urls[0]) as http, httpx.AsyncClient(base_url=urls[1]) as admin_http:
        while not all(server.started for server in servers):
            await asyncio.sleep(0.005)
        try:
            yield Served(engine, state, http, admin_http, urls[0])
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
            await engine.loop.stop()


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])
