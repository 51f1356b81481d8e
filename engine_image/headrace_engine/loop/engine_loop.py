"""The step thread: sole owner of scheduler and runner. Other threads reach them by calls that run between two steps.

loop: calls from the inbox -> plan -> run -> commit -> publish to the asyncio side in one batch. An error in one request
fails that request alone; if the thread dies, every request fails and `alive` turns false.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from headrace_core.evidence.slo import SloSet
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    Finished,
    FinishReason,
    Outcome,
    Rejected,
    SchedulerStats,
    Started,
    StepPlan,
    Token,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace.explain import RequestExplanation
from headrace_core.trace.history import History
from headrace_engine.loop.config_state import (
    UNCHANGED,
    ConfigKeeper,
    ConfigState,
    Unchanged,
)
from headrace_engine.loop.inbox import EngineDeadError, Inbox
from headrace_engine.loop.live_request import LiveRequest, RejectedError
from headrace_engine.loop.runner import ModelRunner, StepOutput
from headrace_engine.loop.step_retry import run_step
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.outputs import Done, Event, RequestProblem, RequestProblemKind
from headrace_engine.sampling.logprobs import NOT_NUMBERS

log = logging.getLogger(__name__)
# A device in a bad state fails every step (a CUDA error lasts as long as the process): only a restart helps.
MAX_FAILED_STEPS = 20
# The scheduler's books are checked after this long without a call: walking all blocks must not delay a request.
QUIET_SECONDS = 1.0
NOTHING = StepOutput(tokens={})


class EngineLoop:
    """Drives one scheduler and one runner. Public coroutines belong to the asyncio loop given to `start`."""

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, metrics: EngineMetrics, *, history: History,
        revision: str = "", clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._runner = runner
        self._metrics = metrics
        self._history = history
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._inbox = Inbox()
        self._outbox: list[tuple[LiveRequest, Event]] = []
        self._keeper = ConfigKeeper(scheduler, metrics, revision=revision)
        self._stopping = False
        self._failed_steps = 0
        self._unchecked = False  # whether steps ran since the books were last checked
        self._dead: str | None = None
        self._aio: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="headrace-step", daemon=True)
        self.step_started: float | None = None  # while a step runs
        self.stats: SchedulerStats = scheduler.stats()
        metrics.stats(self.stats)

    # Called from the asyncio side

    def start(self) -> None:
        """Start the step thread; events go to the running asyncio loop."""
        self._aio = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the current step; requests still alive fail."""
        self._stopping = True
        self._inbox.wake()
        await asyncio.to_thread(self._thread.join)

    @property
    def state(self) -> ConfigState:
        """The config in force."""
        return self._keeper.state

    @property
    def alive(self) -> bool:
        """Whether the step thread is running."""
        return self._thread.is_alive() and self._dead is None

    def step_age(self) -> float:
        """Seconds that the current step has been running; 0 between steps."""
        started = self.step_started
        return 0.0 if started is None else self._clock() - started

    async def submit(self, requests: Sequence[LiveRequest]) -> None:
        """Queue all of them or none. Raises `RejectedError`. If the caller is cancelled, they are aborted."""
        try:
            await self._inbox.call(lambda: self._submit(requests))
        except asyncio.CancelledError:
            self.abort([each.id for each in requests])
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests whose client is gone; ids of requests that have ended are ignored."""
        self._inbox.post(lambda: self._abort(request_ids))

    async def reconfigure(
        self, changes: Mapping[str, object], *, revision: str | None = None, if_generation: int | None = None,
        slo: SloSet | Unchanged | None = UNCHANGED,
    ) -> ConfigState:  # fmt: skip
        """Change hot knobs, revision and SLO set, all or none, between two steps.

        Raises `ConfigRefusedError`, `StaleGenerationError`.
        """
        change = self._keeper.change
        return await self._inbox.call(
            lambda: change(changes, now=self._clock(), revision=revision, if_generation=if_generation, slo=slo)
        )

    async def explain(self, request_id: str) -> RequestExplanation | None:
        """The scheduler's explanation of a request; None if it knows no such id."""
        return await self._inbox.call(lambda: self._history.explain(request_id, self._clock()))

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
            self._fail_everybody(RequestProblem(self._dead))
            self._inbox.close(self._dead)

    def _take_calls(self) -> None:
        """Run the waiting calls; wait for one if there is nothing else to do."""
        took = False
        while self._take_call(wait=not self._scheduler.has_work and not took):
            took = True
        if took:
            self._after_change()

    def _take_call(self, *, wait: bool) -> bool:
        """Run the next call; return whether there may be more.

        The scheduler's books are checked in a quiet moment: if they are wrong, the thread (and so the pod) ends while
        no request runs, rather than later, when blocks of requests are mixed up.
        """
        if wait and self._unchecked:
            try:
                return self._inbox.run_next(block=True, timeout=QUIET_SECONDS)
            except queue.Empty:
                invariants.check(self._scheduler)
                self._unchecked = False
        return self._inbox.run_next(block=wait)

    def _step(self) -> None:
        plan = self._scheduler.plan(self._clock())
        if plan is None:
            return
        self._unchecked = True
        generation = self._keeper.generation(plan.generation)
        started = self.step_started = self._clock()
        states = {seq.request_id: self._live[seq.request_id].state for seq in plan.seqs}
        attempt = run_step(self._runner, plan, states)
        now = self._clock()
        self.step_started = None
        self._failed_steps = self._failed_steps + 1 if attempt.all_failed else 0
        self._metrics.step(plan, generation, seconds=now - started, failed=attempt.problem is not None)
        self._score_prompts(plan, attempt.output)
        self._handle(self._scheduler.commit(plan, attempt.output, now), now, attempt.output)
        self._after_change()
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDeadError(f"{self._failed_steps} steps in a row failed, the last with: {attempt.problem}")

    def _score_prompts(self, plan: StepPlan, output: StepOutput) -> None:
        for request_id, scores in output.prompt_scores.items():
            self._live[request_id].score_prompt(scores)
        for seq in plan.seqs:
            # A fork has no rows of the prompt: it copies its sibling's scores.
            lead = self._live.get(seq.fork_of) if seq.fork_of else None
            if lead is not None:
                self._live[seq.request_id].score_prompt_like(lead)

    def _handle(self, outcomes: Sequence[Outcome], now: float, output: StepOutput = NOTHING) -> None:
        took: list[LiveRequest] = []
        for outcome in outcomes:
            live = self._live.get(outcome.request_id)
            if live is None:
                continue
            match outcome:
                case Started(at=at, cached_tokens=cached):
                    live.record.start(at, cached)
                case Token():
                    took.append(live)
                    self._take(live, outcome, now, output)
                case Finished(reason=FinishReason.ERROR):
                    self._fail(live, now, output.problems.get(outcome.request_id, NOT_NUMBERS))
                case Finished(reason=reason):
                    self._end(live, reason, now)
        for live in took:
            if self._live.get(live.id) is live:
                self._publish_or_end(live, now)

    def _take(self, live: LiveRequest, token: Token, now: float, output: StepOutput) -> None:
        live.record.token(now)
        self._metrics.token(live.record, self.state.generation)
        try:
            live.take(token.token_id, output.scores.get(token.request_id))
        except Exception as error:
            log.exception("taking a token failed", extra={"request_id": token.request_id})
            self._scheduler.finish(token.request_id, FinishReason.ERROR, now)
            self._fail(live, now, RequestProblem(f"{type(error).__name__}: {error}"))

    def _publish_or_end(self, live: LiveRequest, now: float) -> None:
        if live.is_over:
            self._scheduler.finish(live.id, FinishReason.STOP, now)
            self._end(live, FinishReason.STOP, now)
        else:
            self._publish(live, live.tell())

    def _end(self, live: LiveRequest, reason: FinishReason, now: float) -> None:
        """Publish the last events of a request that the scheduler has ended."""
        try:
            events = live.end(reason)
        except Exception as error:
            log.exception("the end of a text failed", extra={"request_id": live.id})
            self._fail(live, now, RequestProblem(f"{type(error).__name__}: {error}"))
            return
        self._forget(live, events, now)

    def _fail(self, live: LiveRequest, now: float, problem: RequestProblem) -> None:
        self._forget(live, live.fail(problem), now, corrupted=problem.kind is RequestProblemKind.NOT_NUMBERS)

    def _forget(self, live: LiveRequest, events: Sequence[Event], now: float, *, corrupted: bool = False) -> None:
        done = events[-1]
        assert isinstance(done, Done)  # noqa: S101  (the last event of every request)
        del self._live[live.id]
        live.record.end(done.reason, now, done.problem)
        self._publish(live, events)
        self._metrics.finished(live.record, done.reason, now=now, corrupted=corrupted)

    def _publish(self, live: LiveRequest, events: Sequence[Event]) -> None:
        self._outbox.extend((live, event) for event in events)

    def _submit(self, requests: Sequence[LiveRequest]) -> None:
        now = self._clock()
        taken: list[str] = []
        try:
            for each in requests:
                self._submit_one(each, now)
                taken.append(each.id)
        except Exception:
            self._abort(taken)
            raise

    def _submit_one(self, live: LiveRequest, now: float) -> None:
        live.state.params.check_ids(self._runner.model.vocab_size)
        answer = self._scheduler.submit(live.request, now)
        if isinstance(answer, Rejected):
            self._metrics.rejected(answer.reason, retry_after=answer.retry_after)
            raise RejectedError(answer)
        self._metrics.begin(live.record, now=now)
        self._live[live.id] = live

    def _abort(self, request_ids: Sequence[str]) -> None:
        now = self._clock()
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is not None:
                self._scheduler.finish(request_id, FinishReason.ABORT, now)
                self._end(live, FinishReason.ABORT, now)

    def _after_change(self) -> None:
        self.stats = self._scheduler.stats()
        self._metrics.stats(self.stats)
        self._deliver()

    def _deliver(self) -> None:
        """Hand all collected events to the asyncio side in one callback."""
        if not self._outbox or self._aio is None:
            return
        batch, self._outbox = self._outbox, []
        try:
            self._aio.call_soon_threadsafe(_put, batch)
        except RuntimeError:
            log.debug("the event loop is closed; %d events are dropped", len(batch))

    def _fail_everybody(self, problem: RequestProblem) -> None:
        """Give every live request its last event, even if other parts, such as the metrics, are broken."""
        now = self._clock()
        live, self._live = self._live, {}
        for each in live.values():
            each.record.end(FinishReason.ERROR, now, problem)
            self._publish(each, each.fail(problem))
        self._deliver()
        try:
            for each in live.values():
                self._metrics.finished(each.record, FinishReason.ERROR, now=now)
            self._after_change()
        except Exception:
            log.exception("the last metrics are lost")


def _put(batch: Sequence[tuple[LiveRequest, Event]]) -> None:
    for live, event in batch:
        live.sink.put(live.record.index, event)
