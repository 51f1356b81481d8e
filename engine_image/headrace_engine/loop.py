"""The step thread: sole owner of scheduler and runner. Others reach them by calls through its inbox, between two steps.

loop: calls from the inbox -> plan -> run -> commit -> publish to the asyncio side in one batch. A forward that raises
fails the requests of its batch and the loop goes on; a loop that dies fails every request, and `alive` turns false.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace_core import invariants
from headrace_core.config import EngineConfig
from headrace_core.events import (
    Finished,
    FinishReason,
    Outcome,
    Refused,
    Rejected,
    Request,
    SchedulerStats,
    Started,
    StepPlan,
    StepResult,
    Token,
)
from headrace_core.scheduler import Scheduler
from headrace_engine.detokenize import TextStream
from headrace_engine.errors import EngineError
from headrace_engine.metrics import EngineMetrics, RequestTimes
from headrace_engine.outputs import Delta, Done, Event
from headrace_engine.runner import Runner
from headrace_engine.sampling import SamplingParams

log = logging.getLogger(__name__)
T = TypeVar("T")
# A device in a bad state (a CUDA error is for the process's life) fails every step: then a restart is the cure.
MAX_FAILED_STEPS = 20
# The books are checked after this long without a call: the walk over all blocks must not delay a request.
QUIET_SECONDS = 1.0

_Call = tuple[Callable[[], Any], Future[Any]]


class EngineDeadError(EngineError):
    """The step thread ended; only a restart helps."""


class RejectedError(EngineError):
    """The scheduler did not take a request."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


class StaleGenerationError(EngineError):
    """`if_generation` names another generation than the one in force."""


class RefusedError(EngineError):
    """The config change is refused; nothing changed."""

    def __init__(self, refused: Refused) -> None:
        super().__init__("; ".join(str(problem) for problem in refused.problems))
        self.problems = refused.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request with all that the scheduler need not know. `events` receives on the asyncio side."""

    request: Request
    params: SamplingParams
    text: TextStream
    events: asyncio.Queue[Event]


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The config in force and its identity."""

    generation: int
    revision: str
    config: EngineConfig


@dataclass(slots=True)
class _Active:
    submission: Submission
    times: RequestTimes


class EngineLoop:
    """Drives one scheduler and one runner. Public coroutines belong to the asyncio loop given to `start`."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, metrics: EngineMetrics, *, revision: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._runner = runner
        self._metrics = metrics
        self._clock = clock
        self._active: dict[str, _Active] = {}
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._outbox: list[tuple[asyncio.Queue[Event], Event]] = []
        self._revision, self._revision_changes = revision, 0
        self._stopping = False
        self._failed_steps = 0
        self._unchecked = False  # whether steps ran since the books were last checked
        self._dead: str | None = None
        self._aio: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="headrace-step", daemon=True)
        self.step_started: float | None = None  # while a step runs
        self.state = self._config_state()
        self.stats: SchedulerStats = scheduler.stats()
        metrics.set_config(self.state.config, generation=self.state.generation, revision=revision)
        metrics.stats(self.stats)

    # Called from the asyncio side

    def start(self) -> None:
        """Start the step thread; events go to the running asyncio loop."""
        self._aio = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the step that runs; requests still alive fail."""
        self._stopping = True
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def alive(self) -> bool:
        """Whether the step thread runs."""
        return self._thread.is_alive() and self._dead is None

    def step_age(self) -> float:
        """Seconds that the current step has been running; 0 between steps."""
        started = self.step_started
        return 0.0 if started is None else self._clock() - started

    async def submit(self, submissions: Sequence[Submission]) -> None:
        """Queue all of them or none. Raises `RejectedError`. If the caller is cancelled, they are aborted."""
        try:
            await self._call(lambda: self._submit(submissions))
        except asyncio.CancelledError:
            self.abort([item.request.request_id for item in submissions])
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests whose client is gone; those that have ended are ignored."""
        self._inbox.put((lambda: self._end(request_ids, FinishReason.ABORT), Future()))

    async def reconfigure(
        self, changes: Mapping[str, object], *, revision: str | None = None, if_generation: int | None = None
    ) -> ConfigState:
        """Change hot knobs, all or none, between two steps. Raises `RefusedError`, `StaleGenerationError`."""
        return await self._call(lambda: self._reconfigure(changes, revision, if_generation))

    async def _call(self, function: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._inbox.put((function, future))
        if not self.alive:
            self._refuse_inbox()
        return await asyncio.wrap_future(future)

    # The step thread

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._take_calls()
                if not self._stopping:
                    self._step()
        except BaseException as error:
            log.exception("the step thread died")
            self._dead = f"the engine stopped: {type(error).__name__}: {error}"
        finally:
            self._dead = self._dead or "the engine is shutting down"
            self._fail_everybody(self._dead)
            self._refuse_inbox()

    def _take_calls(self) -> None:
        """Run the calls that wait; with nothing else to do, wait for one."""
        took = False
        while True:
            try:
                item = self._next_call(wait=not self._scheduler.has_work and not took)
            except queue.Empty:
                break
            if item is None:
                break
            took = True
            _answer(*item)
        if took:
            self._after_change()

    def _next_call(self, *, wait: bool) -> _Call | None:
        """The next call; queue.Empty if there is none and `wait` is false.

        A quiet moment is used to check the scheduler's books: wrong ones end the thread (and so the pod) while nobody
        is served, rather than later with somebody's blocks.
        """
        if wait and self._unchecked:
            try:
                return self._inbox.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                invariants.check(self._scheduler)
                self._unchecked = False
        return self._inbox.get(block=wait)

    def _step(self) -> None:
        plan = self._scheduler.plan(self._clock())
        if plan is None:
            return
        self._unchecked = True
        generation = plan.generation + self._revision_changes
        started = self.step_started = self._clock()
        result, problem = self._run(plan)
        now = self._clock()
        self.step_started = None
        self._metrics.step(plan, generation, seconds=now - started, failed=problem is not None)
        self._handle(self._scheduler.commit(plan, result, now), now, problem=problem)
        self._after_change()
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(f"{self._failed_steps} steps in a row failed, the last with: {problem}")

    def _run(self, plan: StepPlan) -> tuple[StepResult, str | None]:
        params = {seq.request_id: self._active[seq.request_id].submission.params for seq in plan.seqs if seq.samples}
        try:
            result = self._runner.run(plan, params)
        except Exception as error:
            log.exception("step %d failed", plan.step, extra={"requests": len(plan.seqs), "tokens": plan.num_tokens})
            self._failed_steps += 1
            problem = f"the model's forward pass failed: {type(error).__name__}: {error}"
            return StepResult(tokens={}, failed=frozenset(seq.request_id for seq in plan.seqs)), problem
        self._failed_steps = 0
        return result, None

    def _handle(self, outcomes: Sequence[Outcome], now: float, *, problem: str | None = None) -> None:
        texts: dict[str, str] = {}  # of tokens not yet published
        for outcome in outcomes:
            active = self._active.get(outcome.request_id)
            if active is None:
                continue
            match outcome:
                case Started(at=at):
                    active.times.started = at if active.times.started is None else active.times.started
                case Token():
                    texts[outcome.request_id] = self._token(active, outcome, now)
                case Finished():
                    self._finished(active, outcome, now, text=texts.pop(outcome.request_id, ""), problem=problem)
        for request_id, text in texts.items():
            self._publish_token(request_id, text, now)

    def _token(self, active: _Active, token: Token, now: float) -> str:
        active.times.tokens.append(now)
        self._metrics.token(active.times, self.state.generation)
        is_stop = token.token_id in active.submission.request.stop_token_ids
        return "" if is_stop else active.submission.text.push(token.token_id)

    def _publish_token(self, request_id: str, text: str, now: float) -> None:
        active = self._active[request_id]
        if active.submission.text.stopped:
            ended = self._scheduler.finish(request_id, FinishReason.STOP, now)
            if ended is not None:
                self._finished(active, ended, now, text=text)
            return
        self._outbox.append((active.submission.events, Delta(text=text)))

    def _finished(
        self, active: _Active, ended: Finished, now: float, *, text: str = "", problem: str | None = None
    ) -> None:
        del self._active[ended.request_id]
        stream = active.submission.text
        reason = FinishReason.STOP if stream.stopped else ended.reason
        if reason is FinishReason.ERROR and problem is None:
            problem = "the model's logits are not numbers for this request"
        self._metrics.finished(active.times, reason, now=now)
        done = Done(
            text=text + stream.finish(), reason=reason, num_output_tokens=len(active.times.tokens), problem=problem
        )
        self._outbox.append((active.submission.events, done))

    def _submit(self, submissions: Sequence[Submission]) -> None:
        now = self._clock()
        for at, item in enumerate(submissions):
            request = item.request
            answer = self._scheduler.submit(request, now)
            if isinstance(answer, Rejected):
                self._metrics.rejected(answer.reason)
                self._end([other.request.request_id for other in submissions[:at]], FinishReason.ABORT)
                raise RejectedError(answer)
            times = RequestTimes(request.arrival, len(request.prompt_token_ids), self.state.generation)
            self._active[request.request_id] = _Active(item, times)
            self._metrics.admitted(len(request.prompt_token_ids))

    def _end(self, request_ids: Sequence[str], reason: FinishReason) -> None:
        now = self._clock()
        ended = [self._scheduler.finish(request_id, reason, now) for request_id in request_ids]
        self._handle([item for item in ended if item is not None], now)

    def _reconfigure(
        self, changes: Mapping[str, object], revision: str | None, if_generation: int | None
    ) -> ConfigState:
        if if_generation is not None and if_generation != self.state.generation:
            raise StaleGenerationError(
                f"if_generation {if_generation} is stale: generation {self.state.generation} is in force; read it again"
            )
        answer = self._scheduler.reconfigure(changes, self._clock())
        if isinstance(answer, Refused):
            raise RefusedError(answer)
        if revision is not None and revision != self._revision:
            self._revision = revision
            # One change of knobs and revision together is one new generation.
            if self._config_state().generation == self.state.generation:
                self._revision_changes += 1
        if (state := self._config_state()) != self.state:
            self.state = state
            self._metrics.set_config(state.config, generation=state.generation, revision=state.revision)
            log.info("config changed", extra={"generation": state.generation, "revision": state.revision})
        return self.state

    def _config_state(self) -> ConfigState:
        generation = self._scheduler.generation + self._revision_changes
        return ConfigState(generation, self._revision, self._scheduler.config)

    def _after_change(self) -> None:
        self.stats = self._scheduler.stats()
        self._metrics.stats(self.stats)
        if self._outbox and self._aio is not None:
            batch, self._outbox = self._outbox, []
            try:
                self._aio.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:
                log.debug("the event loop is closed; %d events are dropped", len(batch))

    def _fail_everybody(self, problem: str) -> None:
        for active in self._active.values():
            done = Done(text="", reason=FinishReason.ERROR, num_output_tokens=len(active.times.tokens), problem=problem)
            self._outbox.append((active.submission.events, done))
        self._active.clear()
        self._after_change()

    def _refuse_inbox(self) -> None:
        while True:
            try:
                item = self._inbox.get(block=False)
            except queue.Empty:
                return
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(EngineDeadError(self._dead or "the engine is shutting down"))


def _answer(function: Callable[[], Any], future: Future[Any]) -> None:
    # A caller that gave up has cancelled the future; its call still runs, as its abort follows.
    wanted = future.set_running_or_notify_cancel()
    try:
        value = function()
    except EngineError as error:
        if wanted:
            future.set_exception(error)
    except Exception as error:
        log.exception("a call into the engine failed")
        if wanted:
            future.set_exception(error)
    else:
        if wanted:
            future.set_result(value)


def _deliver(batch: Sequence[tuple[asyncio.Queue[Event], Event]]) -> None:
    for events, event in batch:
        events.put_nowait(event)
