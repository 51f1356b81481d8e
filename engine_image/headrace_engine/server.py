"""The server process: bind, load beside the running HTTP server, serve, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from starlette.types import ASGIApp

from headrace_engine import device as devices
from headrace_engine.daemon import in_daemon
from headrace_engine.engine import Engine, assemble, load
from headrace_engine.http import tracing
from headrace_engine.http.access_log import CallLog
from headrace_engine.http.admin import admin_routes
from headrace_engine.http.auth import ApiKeys, KeyGuard
from headrace_engine.http.cross_origin import cross_origin
from headrace_engine.http.errors import application
from headrace_engine.http.health import health_routes
from headrace_engine.http.limits import MAX_BODY_BYTES, STALL_SECONDS, BodyLimit
from headrace_engine.http.listener import bind, http_server
from headrace_engine.http.state import ServerState
from headrace_engine.model.generation import OPENAIS
from headrace_engine.openai.openapi import openapi_route
from headrace_engine.openai.routes import OpenAiApi
from headrace_engine.settings import ServerSettings

log = logging.getLogger(__name__)
CUT_SECONDS = 1.0  # to deliver the error events of streams that are cut
STOP_SECONDS = 10.0  # to finish the last step
CUT = "the server is shutting down and this request took longer than the time that was left: send it again"


def serving_app(
    state: ServerState, *, keys: ApiKeys | None = None, traces: tracing.Tracing | None = None,
    max_bytes: int = MAX_BODY_BYTES, stall_seconds: float = STALL_SECONDS, origins: Sequence[str] = (),
) -> ASGIApp:  # fmt: skip
    """The serving port's app, outermost layer first: call log > CORS > limits > API key > routes."""
    routes = [*health_routes(state), openapi_route(guarded=keys is not None), *OpenAiApi(state).routes]
    app = application(routes)
    guarded: ASGIApp = app if keys is None else KeyGuard(app, keys=keys)
    limited = BodyLimit(guarded, max_bytes=max_bytes, stall_seconds=stall_seconds)
    return CallLog(cross_origin(limited, origins) if origins else limited, state=state, tracing=traces)


def admin_app(state: ServerState, *, token: str | None, loopback: bool) -> ASGIApp:
    """The admin port's app."""
    app = application(admin_routes(state, token=token, loopback=loopback))
    return CallLog(BodyLimit(app), state=state)


class ServerProcess:
    """One run of the server, from sockets to exit."""

    def __init__(self, settings: ServerSettings, *, on_ready: Callable[[Engine, ServerSettings], None]) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._state = ServerState(
            settings.served_name, keep_content=settings.log_prompts, tool_call_parser=settings.tool_call_parser
        )
        self._traces = tracing.start(os.environ, model=settings.served_name, port=settings.port)
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._threads_run = False  # threads are running that cannot be stopped
        self._ending = False  # no call is served any more

    async def run(self, sockets: tuple[socket.socket, socket.socket]) -> None:
        """Serve until SIGTERM or SIGINT. Raises `EngineError` if the model cannot be loaded.

        If a thread hangs in native code, the process ends here instead of waiting for it.
        """
        settings, state = self._settings, self._state
        apps = (
            serving_app(state, keys=settings.api_keys, traces=self._traces, origins=settings.allowed_origins),
            admin_app(state, token=settings.admin_token, loopback=settings.on_loopback),
        )
        servers = [http_server(app) for app in apps]
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
            await self._end()
        if self._threads_run:
            _exit()

    def _signalled(self) -> None:
        if self._ending:
            _exit()
        (self._kill if self._stop.is_set() else self._stop).set()
        self._state.drain()

    async def _load_and_serve(self) -> None:
        loading = asyncio.create_task(in_daemon(lambda: load_engine(self._settings), name="headrace-load"))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            log.info("ending while the model loads")
            self._threads_run = True
            loading.cancel()
            return
        engine = await loading
        engine.loop.start()
        self._state.ready(engine)
        if not self._stop.is_set():
            self._on_ready(engine, self._settings)
        await stop
        await self._drain()

    async def _drain(self) -> None:
        """Let the calls in flight finish; cut them after the drain timeout, or at a second signal."""
        seconds = self._settings.drain_timeout
        log.info("draining: running requests have %g s", seconds)
        drained, kill = asyncio.create_task(self._state.drained()), asyncio.create_task(self._kill.wait())
        await asyncio.wait((drained, kill), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            log.info("drained")
        else:
            log.warning("ending with requests still running", extra={"generations": self._state.calls.cut(CUT)})
            await asyncio.wait((drained,), timeout=CUT_SECONDS)
        for task in (drained, kill):
            task.cancel()

    async def _end(self) -> None:
        self._ending = True
        self._threads_run = self._threads_run or self._kill.is_set()  # after a second signal, wait for nothing
        if self._traces is not None and not self._kill.is_set():
            await self._traces.close()
        if not self._threads_run and self._state.engine is not None:
            try:
                await asyncio.wait_for(self._state.engine.loop.stop(), STOP_SECONDS)
            except TimeoutError:
                log.error("the step thread does not end; the process ends without it")
                self._threads_run = True


def _exit() -> NoReturn:
    """End the process with threads still running: nothing else can stop them in native code."""
    logging.shutdown()
    os._exit(0)


def load_engine(settings: ServerSettings) -> Engine:
    """Load, probe and assemble, as `settings` say. Slow; raises `EngineError`."""
    torch.set_num_threads(settings.threads)
    device = devices.pick_device(settings.device)
    loaded, layers = load(settings.source, settings.config, device=device)
    sampling = loaded.generation.sampling() if settings.generation_config == "auto" else OPENAIS
    engine = assemble(
        loaded, layers, settings.config, served_name=settings.served_name, revision=settings.revision, slo=settings.slo,
        record=settings.record, sampling=sampling,
    )  # fmt: skip
    # All objects so far are permanent. If a full collection walked the half million of the libraries, it would take a
    # quarter of a second, during which no token is generated.
    gc.collect()
    gc.freeze()
    return engine


def serve(settings: ServerSettings, *, on_ready: Callable[[Engine, ServerSettings], None]) -> None:
    """Run the server until SIGTERM or SIGINT. `on_ready` gets the settings with actual ports. Raises `EngineError`."""
    sockets: list[socket.socket] = []
    try:
        sockets.append(bind(settings.host, settings.port, "--port"))
        sockets.append(bind(settings.host, settings.admin_port, "--admin-port"))
        # Port 0 means any free port: this is where the caller learns which.
        port, admin_port = (int(sock.getsockname()[1]) for sock in sockets)
        log.info("listening", extra={"host": settings.host, "port": port, "admin_port": admin_port})
        found = replace(settings, port=port, admin_port=admin_port)
        asyncio.run(_run(found, on_ready, (sockets[0], sockets[1])))
    finally:
        gc.unfreeze()  # otherwise native libraries complain on stderr at exit about uncollected objects
        for sock in sockets:
            sock.close()


async def _run(
    settings: ServerSettings,
    on_ready: Callable[[Engine, ServerSettings], None],
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    await ServerProcess(settings, on_ready=on_ready).run(sockets)
