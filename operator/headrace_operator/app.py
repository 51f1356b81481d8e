"""Puts the operator together and runs it until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import aiohttp
import kopf
from aiohttp import web

from headrace_api import names
from headrace_api.v1alpha1.inferenceservice import EngineKind
from headrace_client.errors import KubeError
from headrace_client.kube import Kube
from headrace_client.prom import Prometheus
from headrace_client.resources import INFERENCE_SERVICES, TUNING_RUNS
from headrace_operator.cluster.apply import Writer
from headrace_operator.cluster.events import EventPoster
from headrace_operator.dependencies import Dependencies
from headrace_operator.engines.base import EngineApi
from headrace_operator.engines.registry import engine_apis
from headrace_operator.metrics import Metrics
from headrace_operator.rollout.controller import RolloutController
from headrace_operator.rollout.measurement import WindowMetrics
from headrace_operator.rollout.windows import PrometheusWindows
from headrace_operator.runtime.cache import IndexCache
from headrace_operator.runtime.handlers import build_registry, configure
from headrace_operator.runtime.worker import ObjectReference, WorkerPool
from headrace_operator.service.controller import ServiceController
from headrace_operator.settings import LogFormat, OperatorSettings
from headrace_operator.tuning.controller import RunController

T = TypeVar("T")
LOG = logging.getLogger(__name__)
CRD_SECONDS = 60.0


def configure_logs(settings: OperatorSettings) -> None:
    """JSON lines with the object's reference, or text for a person."""
    log_format = kopf.LogFormat.JSON if settings.log_format is LogFormat.JSON else kopf.LogFormat.FULL
    kopf.configure(debug=settings.log_level == "DEBUG", log_format=log_format, log_refkey="k8s")
    logging.getLogger().setLevel(settings.log_level)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    if settings.log_level != "DEBUG":
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # one line for each event of each object
    for handler in logging.getLogger().handlers:
        handler.addFilter(ObjectReference())


class App:
    """One operator process. Tests set `engines` and `windows`."""

    def __init__(self, settings: OperatorSettings, kube: Kube) -> None:
        self.settings = settings
        self.kube = kube
        self.metrics = Metrics()
        self.engines: Mapping[EngineKind, EngineApi] | None = None
        self.windows: WindowMetrics | None = None

    async def run(self, stop: asyncio.Event | None = None, ready: asyncio.Event | None = None) -> None:
        """Run until `stop`, a signal, or a failure that a restart cures."""
        await self.wait_for_definitions()
        async with self._clients(), self._metrics_server():
            kopf_settings = kopf.OperatorSettings()
            configure(kopf_settings)
            scope: dict[str, Any] = {"clusterwide": True}
            if self.settings.namespaces:
                scope = {"namespaces": list(self.settings.namespaces)}
            await kopf.operator(
                registry=build_registry(self.kube.connection, start=self._start),
                settings=kopf_settings,
                memo=kopf.Memo(),
                # Kopf would ask the user database, which has no entry for the uid of a container.
                identity=cast("Any", "headrace-operator"),
                liveness_endpoint=f"http://{self.settings.health_address}/healthz",
                stop_flag=stop,
                ready_flag=ready,
                **scope,
            )

    async def wait_for_definitions(self) -> None:
        """Wait for the CRDs, which are installed together with the operator. Raises `KubeError` after a minute."""
        namespace = self.settings.namespaces[0] if self.settings.namespaces else None
        for resource in (INFERENCE_SERVICES, TUNING_RUNS):
            await self._wait_for(resource, namespace)

    async def _wait_for(self, resource: Any, namespace: str | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CRD_SECONDS
        while True:
            try:
                await self.kube.list(resource, namespace)
                return
            except KubeError as error:
                if loop.time() > deadline:
                    raise
                LOG.warning("waiting for %s: %s", resource.plural, error)
            await asyncio.sleep(1.0)

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            self.engines = self.engines or engine_apis(session)
            url = self.settings.prometheus_url
            self.windows = self.windows or PrometheusWindows(Prometheus(url, session=session) if url else None)
            yield

    @asynccontextmanager
    async def _metrics_server(self) -> AsyncIterator[None]:
        async def scrape(_: web.Request) -> web.Response:
            return web.Response(body=self.metrics.text(), content_type="text/plain", charset="utf-8")

        site = web.Application()
        site.router.add_get("/metrics", scrape)
        runner = web.AppRunner(site, access_log=None)
        await runner.setup()
        host, port = self.settings.metrics_address.rsplit(":", 1)
        await web.TCPSite(runner, host, int(port)).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _start(self, cache: IndexCache) -> WorkerPool:
        loop = asyncio.get_running_loop()
        writer = Writer(self.kube, cache, clock=loop.time)
        engines = self._given(self.engines)
        dependencies = Dependencies(
            kube=self.kube,
            cache=cache,
            engines=engines,
            rollout=RolloutController(
                cache=cache, writer=writer, engines=engines, metrics=self._given(self.windows), now=_now
            ),
            settings=self.settings,
            writer=writer,
            events=EventPoster(self.kube, _now),
            now=_now,
            clock=loop.time,
        )
        reconcilers = {
            names.INFERENCE_SERVICE_KIND: ServiceController(dependencies).reconcile,
            names.TUNING_RUN_KIND: RunController(dependencies).reconcile,
        }
        workers = WorkerPool(reconcilers=reconcilers, metrics=self.metrics, resync_seconds=self.settings.resync_seconds)
        self.metrics.watch_queue(lambda: workers.queue.depth, workers.queue.oldest)
        self.metrics.watch_objects(cache.all_services, cache.all_runs)
        workers.start(self.settings.workers)
        return workers

    @staticmethod
    def _given(client: T | None) -> T:
        if client is None:
            raise RuntimeError("the clients are not open")
        return client


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  (the operator's only clock; everything else is passed it)
