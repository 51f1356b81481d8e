"""Workers over the queue: take a key, reconcile it, decide when it comes back. An error never ends a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from headrace_client.errors import Conflict, KubeError
from headrace_operator.metrics import Metrics
from headrace_operator.protocols import Key
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.runtime.work_queue import WorkQueue

LOG = logging.getLogger(__name__)
CONFLICT_SECONDS = 0.2  # by then the watch has shown what we conflicted with
PASS_SECONDS = 120.0  # a pass that takes longer is stuck
STUCK_SECONDS = 300.0

_CURRENT: ContextVar[Key | None] = ContextVar("object", default=None)
Reconcile = Callable[[Key], Awaitable[Requeue]]


@dataclass(slots=True)
class WorkerPool:
    """The queue, its workers, and the answer to the liveness probe."""

    reconcilers: Mapping[str, Reconcile]
    metrics: Metrics
    resync_seconds: float
    queue: WorkQueue[Key] = field(default_factory=WorkQueue)
    workers: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, count: int) -> None:
        """Start `count` workers on the running loop."""
        self.workers = [asyncio.create_task(self._work(), name=f"worker-{number}") for number in range(count)]

    async def stop(self) -> None:
        """Stop the workers; the next operator process repeats a pass that is cut off."""
        self.queue.close()
        for task in self.workers:
            task.cancel()
        await asyncio.gather(*self.workers, return_exceptions=True)

    def problem(self) -> str:
        """Why this process should be replaced, or an empty string."""
        dead = [task.get_name() for task in self.workers if task.done()]
        if dead or not self.workers:
            return f"workers that ended: {', '.join(dead) or 'all'}"
        oldest = self.queue.oldest()
        return f"a key has been waiting for {oldest:.0f} s" if oldest > STUCK_SECONDS else ""

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            token = _CURRENT.set(key)
            try:
                await self._one(key)
            finally:
                _CURRENT.reset(token)
                self.queue.done(key)

    async def _one(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        result = "ok"
        try:
            async with asyncio.timeout(PASS_SECONDS):
                again = await self.reconcilers[key.kind](key)
        except Conflict as error:
            result = "conflict"
            LOG.info("someone else changed it in the meantime: %s", error)
            self.queue.add_after(key, CONFLICT_SECONDS)
        except (KubeError, TimeoutError) as error:
            result = "unavailable"
            LOG.warning("%s; retrying in %.1f s", str(error) or "timed out", self.queue.retry(key))
        except Exception:
            result = "bug"
            LOG.exception("a bug in the operator; retrying in %.1f s", self.queue.retry(key))
        else:
            result = "failed" if again.failed else "ok"
            self._schedule(key, again)
        self.metrics.reconciles.labels(key.kind, result).inc()
        self.metrics.seconds.labels(key.kind).observe(loop.time() - started)

    def _schedule(self, key: Key, again: Requeue) -> None:
        for other in again.wake:
            self.queue.add(other)
        if again.gone:
            self.queue.forget(key)
            return
        if again.failed:
            LOG.warning("%s; retrying in %.1f s", again.failed, self.queue.retry(key))
            return
        self.queue.succeeded(key)
        if again.after is not None:
            self.queue.add_after(key, again.after)
        self.queue.add_resync(key, self.resync_seconds)


class ObjectReference(logging.Filter):
    """Gives each log line of a pass the reference of the pass's object, in the form that Kopf's formatter expects."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always lets the record through."""
        key = _CURRENT.get()
        if key is not None and not hasattr(record, "k8s_ref"):
            record.k8s_ref = {"kind": key.kind, "namespace": key.namespace, "name": key.name}
        return True
