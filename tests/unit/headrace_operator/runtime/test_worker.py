"""Workers: a failed key comes back later, a bug never ends a worker, and the probe reports a dead one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace_client.errors import Conflict, Unavailable
from headrace_operator.metrics import Metrics
from headrace_operator.protocols import Key
from headrace_operator.runtime.requeue import Requeue
from headrace_operator.runtime.work_queue import Backoff, WorkQueue
from headrace_operator.runtime.worker import STUCK_SECONDS, WorkerPool

KEY = Key("InferenceService", "default", "chat")


def workers(reconcile: Callable[[Key], Awaitable[Requeue]]) -> WorkerPool:
    queue: WorkQueue[Key] = WorkQueue(backoff=Backoff(base=0.001, limit=0.002))
    return WorkerPool(reconcilers={"InferenceService": reconcile}, metrics=Metrics(), resync_seconds=60, queue=queue)


def counted(subject: WorkerPool, result: str) -> float:
    return subject.metrics.registry.get_sample_value(
        "headrace_operator_reconciles_total", {"kind": "InferenceService", "result": result}
    ) or 0.0  # fmt: skip


@pytest.mark.parametrize(
    ("error", "result"),
    [(Unavailable("503"), "unavailable"), (TimeoutError(), "unavailable"), (ZeroDivisionError(), "bug")],
)
async def test_a_key_whose_pass_failed_comes_back(error: Exception, result: str) -> None:
    passes = 0
    done = asyncio.Event()

    async def reconcile(key: Key) -> Requeue:
        nonlocal passes
        passes += 1
        if passes < 3:
            raise error
        done.set()
        return Requeue()

    subject = workers(reconcile)
    subject.start(2)
    subject.queue.add(KEY)
    await asyncio.wait_for(done.wait(), 10)
    assert subject.problem() == ""
    await subject.stop()
    assert counted(subject, result) == 2


async def test_a_conflict_comes_again_soon_and_wakes_go_to_the_queue() -> None:
    seen: list[Key] = []
    other = Key("InferenceService", "default", "other")
    done = asyncio.Event()

    async def reconcile(key: Key) -> Requeue:
        seen.append(key)
        if len(seen) == 1:
            raise Conflict("409")
        if key == other:
            done.set()
            return Requeue(gone=True)
        return Requeue(wake=(other,))

    subject = workers(reconcile)
    subject.start(1)
    subject.queue.add(KEY)
    await asyncio.wait_for(done.wait(), 10)
    await subject.stop()
    assert seen == [KEY, KEY, other]


async def test_the_probe_reports_dead_workers_and_stuck_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reconcile(key: Key) -> Requeue:
        return Requeue()

    subject = workers(reconcile)
    assert "ended" in subject.problem()
    subject.start(1)
    assert subject.problem() == ""
    monkeypatch.setattr(WorkQueue, "oldest", lambda self: STUCK_SECONDS + 1)
    assert "waiting for 301 s" in subject.problem()
    monkeypatch.undo()
    await subject.stop()
    assert "worker-0" in subject.problem()


def test_metrics_count_objects_by_state() -> None:
    metrics = Metrics()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    metrics.watch_objects(lambda: [ready, {}], lambda: [{"status": {"phase": "Searching"}}, {}])
    text = metrics.text().decode()
    for line in (
        'headrace_operator_services{ready="True"} 1.0',
        'headrace_operator_services{ready="Unknown"} 1.0',
        'headrace_operator_tuning_runs{phase="Searching"} 1.0',
        'headrace_operator_tuning_runs{phase="Pending"} 1.0',
    ):
        assert line in text
