"""Kopf decorators, and nothing else: indexes fill the cache, events fill the queue. No handler does I/O.

Only `on.event` and `index` are used, so Kopf writes nothing on any object: no finalizer, no annotation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from headrace_api import names
from headrace_client.connection import Connection
from headrace_client.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    JOBS,
    PODS,
    SERVICES,
    TUNING_RUNS,
    ApiResource,
)
from headrace_operator.protocols import Key
from headrace_operator.runtime.cache import (
    IndexCache,
    label_key,
    object_key,
    owners,
    run_service_key,
    slim,
)
from headrace_operator.runtime.login import log_in
from headrace_operator.runtime.worker import WorkerPool

LOG = logging.getLogger(__name__)
OURS = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
CHILDREN = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, JOBS)
FINALIZER = f"operator.{names.GROUP}/unused"

Start = Callable[[IndexCache], Awaitable[WorkerPool]]
Body = Mapping[str, Any]


def build_registry(connection: Connection, *, start: Start) -> kopf.OperatorRegistry:
    """Every handler of the operator. `start` makes the workers once the indexes exist (they fill soon after)."""
    registry = kopf.OperatorRegistry()
    _login(registry, connection)
    _lifecycle(registry, start)
    _indexes(registry)
    _events(registry)
    return registry


def configure(settings: kopf.OperatorSettings) -> None:
    """Pin Kopf's settings: time limits, no writes of its own, and watches limited to objects with our label."""
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"operator.{names.GROUP}", v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"operator.{names.GROUP}")
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 30
    settings.execution.default_backoff = 10
    settings.process.ultimate_exiting_timeout = 25
    for resource in (PODS, *CHILDREN):
        settings.watching.label_selectors[_selector(resource)] = names.selector_string(OURS)


def _selector(resource: ApiResource) -> tuple[str, str]:
    return resource.api_version, resource.plural


def _login(registry: kopf.OperatorRegistry, connection: Connection) -> None:
    @kopf.on.login(registry=registry, id="connection", errors=kopf.ErrorsMode.PERMANENT)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await log_in(connection)


def _lifecycle(registry: kopf.OperatorRegistry, start: Start) -> None:
    @kopf.on.startup(registry=registry, id="start", errors=kopf.ErrorsMode.PERMANENT)
    async def startup(memo: Any, **kwargs: Any) -> None:
        memo.cache = cache_of(kwargs)
        memo.workers = await start(memo.cache)

    @kopf.on.cleanup(registry=registry, id="stop")
    async def cleanup(memo: Any, **_: Any) -> None:
        await memo.workers.stop()

    @kopf.on.probe(registry=registry, id="workers", errors=kopf.ErrorsMode.PERMANENT)
    async def probe(memo: Any, **_: Any) -> str:
        problem = memo.workers.problem()
        if problem:
            raise kopf.PermanentError(problem)
        return "ok"


def cache_of(indexes: Mapping[str, Any]) -> IndexCache:
    """The cache over Kopf's indexes, which it passes to handlers by name."""
    return IndexCache(
        services=indexes["services"],
        runs=indexes["runs"],
        runs_by_service=indexes["runs_by_service"],
        children=indexes["children"],
        engine_pods_index=indexes["engine_pods"],
        run_pods_index=indexes["run_pods"],
    )


def _indexes(registry: kopf.OperatorRegistry) -> None:
    def index(resource: ApiResource, name: str, key: Callable[[Body], Any]) -> None:
        @kopf.index(*_selector(resource), id=name, registry=registry)
        async def fill(body: kopf.Body, **_: Any) -> dict[Any, dict[str, Any]]:
            plain = slim({**body, "apiVersion": resource.api_version, "kind": resource.kind})
            place = key(plain)
            return {} if place is None else {place: plain}

    index(INFERENCE_SERVICES, "services", object_key)
    index(TUNING_RUNS, "runs", object_key)
    index(TUNING_RUNS, "runs_by_service", run_service_key)
    index(PODS, "engine_pods", lambda body: label_key(body, names.SERVICE_LABEL))
    index(PODS, "run_pods", lambda body: label_key(body, names.TUNING_RUN_LABEL))
    for resource in CHILDREN:
        index(resource, "children", lambda body: (body["kind"], *object_key(body)))


def _events(registry: kopf.OperatorRegistry) -> None:
    @kopf.on.event(*_selector(INFERENCE_SERVICES), registry=registry, id="service_changed")
    async def service_changed(memo: Any, body: kopf.Body, **_: Any) -> None:
        _add(memo, Key(names.INFERENCE_SERVICE_KIND, *object_key(body)))
        for run in memo.cache.runs_of(*object_key(body)):
            _add(memo, Key(names.TUNING_RUN_KIND, *object_key(run)))

    @kopf.on.event(*_selector(TUNING_RUNS), registry=registry, id="run_changed")
    async def run_changed(memo: Any, body: kopf.Body, **_: Any) -> None:
        _add(memo, Key(names.TUNING_RUN_KIND, *object_key(body)))
        service = run_service_key(body)
        if service is not None:
            _add(memo, Key(names.INFERENCE_SERVICE_KIND, *service))

    async def child_changed(memo: Any, body: kopf.Body, **_: Any) -> None:
        for kind, name in owners(body).items():
            _add(memo, Key(kind, object_key(body)[0], name))

    for resource in (PODS, *CHILDREN):
        kopf.on.event(*_selector(resource), registry=registry, id="child_changed")(child_changed)


def _add(memo: Any, key: Key) -> None:
    memo.workers.queue.add(key)
    memo.workers.metrics.last_event.set_to_current_time()
