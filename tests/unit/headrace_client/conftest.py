"""A server on loopback that gives one scripted answer per request, and remembers the requests."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

sys.path.insert(0, str(Path(__file__).parent))  # for `kubeconfigs`: test folders are not packages

from headrace_client.connection import auto_connection
from headrace_client.kube import Kube
from headrace_client.transport import Retry

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Double:
    """The fault-injecting server. `script` is used up from the front; a request beyond it is answered with 599."""

    folder: Path
    script: list[Answer] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    delays: list[float] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def then(self, *answers: Answer) -> "Double":
        self.script += answers
        return self

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.seen.append(Seen(request.method, request.path, dict(request.query), dict(request.headers), body))
        if not self.script:
            return web.json_response({"message": "the script is over"}, status=599)
        return await self.script.pop(0)(request)

    def json(self, body: Any, status: int = 200, **headers: str) -> Answer:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.json_response(body, status=status, headers=headers)

        return answer

    def failure(self, code: int, message: str, reason: str = "", causes: Any = (), **headers: str) -> Answer:
        return self.json(status_object(code, message, reason, causes), code, **headers)

    def reset(self) -> Answer:
        """The connection breaks before an answer."""

        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        return answer

    def stream(self, *parts: Any, end: str = "close") -> Answer:
        """A watch: events or raw bytes, then `close`, `reset`, or `silence` (until the test ends)."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for part in parts:
                await response.write(part if isinstance(part, bytes) else json.dumps(part).encode() + b"\n")
            if end == "silence":
                await self.release.wait()
            if end == "reset":
                assert request.transport is not None
                request.transport.abort()
            return response

        return answer

    def kube(self, *, user: Any = None, attempts: int = 5, url: str = "") -> Kube:
        """A client that signs in with the `user` entry of a kubeconfig; paths are relative to `folder`."""

        async def sleep(seconds: float) -> None:
            self.delays.append(seconds)
            await asyncio.sleep(0)

        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": url or self.url}}],
            "users": [{"name": "c", "user": user or {}}],
        }
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        connection = auto_connection(kubeconfig=path)
        return Kube(connection, retry=Retry(sleep=sleep, attempts=attempts))


def status_object(code: int, message: str, reason: str = "", causes: Any = ()) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "message": message, "reason": reason, "details": {"causes": list(causes)}}


@pytest.fixture
async def double(tmp_path: Path) -> AsyncIterator[Double]:
    made = Double(tmp_path)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.handle)
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made
        made.release.set()
