"""The work queue under virtual time: the loop's clock jumps to the next timer, nothing waits."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_operator.runtime.work_queue import Backoff, WorkQueue


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer as soon as there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            if timeout is None:
                raise RuntimeError("deadlock: nothing is due and nothing is scheduled")
            self._virtual += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._virtual


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


async def take(queue: WorkQueue[str]) -> tuple[str, float]:
    key = await queue.get()
    return key, round(asyncio.get_running_loop().time(), 6)


def test_a_key_added_often_is_worked_on_once() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for _ in range(3):
            queue.add("a")
        assert queue.depth == 1
        assert await take(queue) == ("a", 0.0)
        queue.done("a")
        assert queue.depth == 0

    run(scenario)


def test_a_key_added_while_worked_on_comes_again_and_never_twice_at_once() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("b")
        assert await take(queue) == ("b", 0.0)
        queue.done("a")
        assert await take(queue) == ("a", 0.0)

    run(scenario)


def test_keys_come_in_the_order_of_their_arrival() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for key in ("c", "a", "b", "c"):
            queue.add(key)
        assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]

    run(scenario)


def test_of_two_delays_the_sooner_counts() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 5)
        queue.add_after("a", 2)
        queue.add_after("a", 9)
        assert await take(queue) == ("a", 2.0)
        queue.done("a")
        queue.add_after("a", 3)
        queue.add("a")
        assert await take(queue) == ("a", 2.0)
        queue.done("a")
        queue.add_after("b", 10)
        assert await take(queue) == ("b", 12.0)

    run(scenario)


def test_failures_back_off_and_success_resets() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base=1, limit=4))
        assert [queue.retry("a") for _ in range(4)] == [1, 2, 4, 4]
        assert await take(queue) == ("a", 1.0)
        queue.succeeded("a")
        assert queue.retry("a") == 1

    run(scenario)


def test_resync_is_spread() -> None:
    async def scenario() -> None:
        draws = iter((0.0, 1.0))
        queue: WorkQueue[str] = WorkQueue(jitter=lambda: next(draws))
        queue.add_resync("a", 100)
        queue.add_resync("b", 100)
        assert await take(queue) == ("a", 90.0)
        assert await take(queue) == ("b", 110.0)

    run(scenario)


def test_a_forgotten_key_is_not_due() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 1)
        queue.forget("a")
        queue.add_after("b", 2)
        assert await take(queue) == ("b", 2.0)

    run(scenario)


def test_the_age_of_the_oldest_key_is_known() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        assert queue.oldest() == 0
        queue.add("a")
        await asyncio.sleep(7)
        assert queue.oldest() == 7
        await queue.get()
        await asyncio.sleep(2)
        assert queue.oldest() == 2
        queue.done("a")
        assert queue.oldest() == 0

    run(scenario)


class Work:
    """Workers that take a second over each key; every add must be followed by the start of a pass."""

    def __init__(self) -> None:
        self.queue: WorkQueue[int] = WorkQueue()
        self.busy: set[int] = set()
        self.owed: set[int] = set()

    async def worker(self) -> None:
        while True:
            key = await self.queue.get()
            assert key not in self.busy
            self.busy.add(key)
            self.owed.discard(key)
            await asyncio.sleep(1)
            self.busy.remove(key)
            self.queue.done(key)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=30), st.integers(1, 3))
def test_no_change_is_missed_and_no_key_has_two_workers(adds: list[tuple[float, int]], workers: int) -> None:
    async def scenario() -> None:
        work = Work()
        tasks = [asyncio.create_task(work.worker()) for _ in range(workers)]
        heap = list(adds)
        heapq.heapify(heap)
        while heap:
            at, key = heapq.heappop(heap)
            await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
            work.owed.add(key)
            work.queue.add(key)
        await asyncio.sleep(100)
        assert not work.owed
        assert not work.busy
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario)


def test_the_virtual_loop_finds_a_deadlock() -> None:
    async def scenario() -> None:
        await WorkQueue[str]().get()

    with pytest.raises(RuntimeError, match="deadlock"):
        run(scenario)
