"""An OpenAI server that streams completions and breaks on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

Handler = Callable[[web.Request, dict, int], Awaitable[web.StreamResponse]]


@dataclass
class FakeServer:
    """An OpenAI server whose behaviour each test sets by `handler(request, body, number)`."""

    url: str = ""
    bodies: list[dict] = field(default_factory=list)
    models: object = field(default_factory=lambda: {"data": [{"id": "fake", "max_model_len": 512}]})
    models_status: int = 200
    handler: Handler | None = None
    refuses: tuple[str, ...] = ()  # fields of a body that get a 400
    usage: bool = True
    per_chunk: int = 1  # tokens in one chunk
    token_seconds: float = 0.0
    headers: list[dict] = field(default_factory=list)

    async def list_models(self, _: web.Request) -> web.Response:
        return web.json_response(self.models, status=self.models_status)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        for name in self.refuses:
            if name in body:
                return web.json_response({"error": {"message": f"unknown field {name}"}}, status=400)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        number = len(self.bodies) - 1
        return await (self.handler or self.well)(request, body, number)

    async def well(self, request: web.Request, body: dict, _: int) -> web.StreamResponse:
        """A whole answer."""
        response = await self.start(request)
        wanted, chat = body.get("max_tokens") or body["max_completion_tokens"], "messages" in body
        for index in range(0, wanted, self.per_chunk):
            await asyncio.sleep(self.token_seconds)
            await self.token(response, last=index + self.per_chunk >= wanted, chat=chat)
        if self.usage and (body.get("stream_options") or {}).get("include_usage"):
            usage = {"completion_tokens": wanted, "prompt_tokens": self.count(body)}
            await self.write(response, {"choices": [], "usage": usage})
        await self.write(response, "[DONE]")
        return response

    @staticmethod
    def count(body: dict) -> int:
        """Tokens of a prompt: two a word, and ten for a chat's frame."""
        if "messages" in body:
            return 10 + sum(2 * len(item["content"].split()) for item in body["messages"])
        return len(body["prompt"]) if isinstance(body["prompt"], list) else 2 * len(body["prompt"].split())

    @staticmethod
    async def start(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    @staticmethod
    async def write(response: web.StreamResponse, payload: object) -> None:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        await response.write(f"data: {text}\n\n".encode())

    async def token(self, response: web.StreamResponse, *, last: bool = False, chat: bool = False) -> None:
        text = {"delta": {"content": "x"}} if chat else {"text": "x"}
        await self.write(response, {"choices": [text | {"finish_reason": "length" if last else None}]})


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_get("/v1/models", fake.list_models)
    app.router.add_post("/v1/completions", fake.complete)
    app.router.add_post("/v1/chat/completions", fake.complete)
    # Some tests leave streams open on purpose.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await asyncio.wait_for(runner.cleanup(), 10)
