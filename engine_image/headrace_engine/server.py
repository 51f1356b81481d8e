"""The server process: bind, load beside the running HTTP server, serve, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import torch
import uvicorn
from fastapi import FastAPI

from headrace_engine import device as devices
from headrace_engine import http_errors
from headrace_engine.admin import admin_router
from headrace_engine.engine import Engine, assemble, load
from headrace_engine.errors import EngineError, SettingsError
from headrace_engine.health import health_router
from headrace_engine.openai_api import OpenAiApi
from headrace_engine.settings import Settings
from headrace_engine.state import ServerState

log = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 75  # longer than a client's pool keeps an idle connection, else it meets a closed one
BACKLOG = 2048


def serving_app(state: ServerState) -> FastAPI:
    """Routes of the serving port."""
    app = FastAPI(title="Headrace engine", openapi_url=None)
    http_errors.install(app)
    app.include_router(health_router(state))
    app.include_router(OpenAiApi(state).router)
    return app


def admin_app(state: ServerState, settings: Settings) -> FastAPI:
    """Routes of the admin port."""
    app = FastAPI(title="Headrace engine admin", openapi_url=None)
    http_errors.install(app)
    app.include_router(admin_router(state, token=settings.admin_token, loopback=settings.on_loopback, slo=settings.slo))
    return app


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket. Raises `SettingsError` that names the flag."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OverflowError as error:
        sock.close()
        raise SettingsError(f"{flag} {port}: a port is 0 to 65535") from error
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {port} on {host} is taken: stop what listens there, or choose another with {flag}"
            ) from error
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}; check --host and {flag}") from error
    sock.set_inheritable(False)
    return sock


class _Server(uvicorn.Server):
    """Uvicorn without its signal handling: a drain is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_server(app: FastAPI) -> _Server:
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1, backlog=BACKLOG, server_header=False, ws="none",
    )  # fmt: skip
    return _Server(config)


class Process:
    """One run of the server, from sockets to exit."""

    def __init__(self, settings: Settings, *, on_ready: Callable[[Engine, ServerState], None]) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._state = ServerState(settings.served_name)
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()

    async def run(self, sockets: tuple[socket.socket, socket.socket]) -> None:
        """Serve until SIGTERM or SIGINT. Raises `EngineError` if the model cannot be loaded."""
        apps = (serving_app(self._state), admin_app(self._state, self._settings))
        servers = [_http_server(app) for app in apps]
        tasks = [
            asyncio.create_task(server.serve(sockets=[sock])) for server, sock in zip(servers, sockets, strict=True)
        ]
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._signalled)
        try:
            await self._load_and_serve()
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
            if self._state.engine is not None:
                await self._state.engine.loop.stop()

    def _signalled(self) -> None:
        (self._kill if self._stop.is_set() else self._stop).set()
        self._state.drain()

    async def _load_and_serve(self) -> None:
        loading = asyncio.create_task(asyncio.to_thread(load_engine, self._settings))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
        # A load cannot be interrupted; a signal meanwhile ends the process right after it.
        engine = await loading
        engine.loop.start()
        self._state.ready(engine)
        if not self._stop.is_set():
            self._on_ready(engine, self._state)
        await stop
        await self._drain()

    async def _drain(self) -> None:
        seconds = self._settings.drain_timeout
        log.info("draining: running requests have %g s", seconds)
        drained, kill = asyncio.create_task(self._state.drained()), asyncio.create_task(self._kill.wait())
        await asyncio.wait((drained, kill), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        log.info("drained" if drained.done() else "ending with requests still running")
        for task in (drained, kill):
            task.cancel()


def load_engine(settings: Settings) -> Engine:
    """Load, probe and assemble, as `settings` say. Slow; raises `EngineError`."""
    torch.set_num_threads(settings.threads)
    device = devices.pick_device(settings.device)
    loaded, layers = load(settings.model, settings.config, device=device)
    return assemble(
        loaded, layers, settings.config, served_name=settings.served_name, revision=settings.revision, slo=settings.slo
    )


def serve(settings: Settings, *, on_ready: Callable[[Engine, ServerState], None]) -> None:
    """Run the server until it is told to stop. Raises `EngineError`."""
    sockets: list[socket.socket] = []
    try:
        sockets.append(bind(settings.host, settings.port, "--port"))
        sockets.append(bind(settings.host, settings.admin_port, "--admin-port"))
        asyncio.run(_run(settings, on_ready, (sockets[0], sockets[1])))
    finally:
        for sock in sockets:
            sock.close()


async def _run(
    settings: Settings, on_ready: Callable[[Engine, ServerState], None], sockets: tuple[socket.socket, socket.socket]
) -> None:
    await Process(settings, on_ready=on_ready).run(sockets)


__all__ = ["EngineError", "Process", "admin_app", "bind", "load_engine", "serve", "serving_app"]
