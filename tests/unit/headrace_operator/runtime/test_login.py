"""Kopf's session signs each request with the credentials current at that moment."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_client.connection import Connection, auto_connection
from headrace_operator.runtime.login import log_in

Seen = list[str]


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, Seen]]:
    """Address of a server that knows one token, `good`, and the Authorization headers that it saw."""
    seen: Seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(status=200 if seen[-1] == "Bearer good" else 401)

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as made:
        yield str(made.make_url("")).rstrip("/"), seen


def connection(url: str, folder: Path, clock: Any = None) -> Connection:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "c", "user": {"tokenFile": "token"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return auto_connection(kubeconfig=folder / "config", environ={}, clock=clock)


async def test_a_refused_token_is_read_again_for_the_next_request(server: tuple[str, Seen], tmp_path: Path) -> None:
    url, seen = server
    (tmp_path / "token").write_text("old\n")
    login = await log_in(connection(url, tmp_path))
    assert (login.server, login.default_namespace) == (url, "team")
    async with login.aiohttp_session as session:
        (tmp_path / "token").write_text("good\n")
        statuses = []
        for _ in range(2):
            async with session.get(url) as response:
                statuses.append(response.status)
    assert statuses == [401, 200]
    assert seen == ["Bearer old", "Bearer good"]


async def test_a_failed_login_looks_like_a_lost_connection(server: tuple[str, Seen], tmp_path: Path) -> None:
    url, seen = server
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    (tmp_path / "token").write_text("good")
    login = await log_in(connection(url, tmp_path, lambda: clock[0]))
    async with login.aiohttp_session as session:
        (tmp_path / "token").unlink()
        clock[0] += timedelta(hours=1)
        with pytest.raises(aiohttp.ClientConnectionError, match="cannot sign in"):
            await session.get(url)
        (tmp_path / "token").write_text("good")
        async with session.get(url) as response:
            assert response.status == 200
    assert seen == ["Bearer good"]
