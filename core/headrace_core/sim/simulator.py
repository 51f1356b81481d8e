"""The scheduler on a virtual clock: the engine's own plans, with a step-time model in place of the model. Pure.

    simulator = Simulator(SimulatedEngine(config, ...), OpenLoop(plan))
    run = simulator.run(until=60.0)

The same arguments give the same run. Between two calls of `run` knobs may change, as a tuner or a rollout changes them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Protocol

from headrace_core.errors import HeadraceError
from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    ChangeRefused,
    Finished,
    FinishReason,
    Preempted,
    Rejected,
    RejectReason,
    Request,
    StepPlan,
    StepResult,
    Token,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.workload.plans import PlannedRequest

SAMPLED = 1  # every sampled token, and every token of a prompt but those that tell it from others
FIRST_OWN, FIRST_SHARED = 1_000_000, 2


class SimulationError(HeadraceError):
    """The simulated engine refused a change of knobs."""


class StepTime(Protocol):
    """A step-time model: `Calibration.step_seconds`, a learned one, or any function."""

    def __call__(self, plan: StepPlan, /) -> float:
        """Seconds that the step takes, above 0."""
        ...


def steady(now: float) -> float:
    """The speed of a machine that does not drift."""
    del now
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEngine:
    """An engine and its machine.

    `speed` at a time divides what `step_time` says: a machine that drifts. `jitter` is the sigma of a lognormal factor
    on each step. `check` holds the scheduler's invariants before and after each step, which is slow.
    """

    config: EngineConfig
    step_time: StepTime
    num_blocks: int
    max_model_len: int
    speed: Callable[[float], float] = steady
    jitter: float = 0.0
    seed: int = 0
    check: bool = False


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive when they are planned, whatever the engine does; in order of time."""

    plan: Iterable[PlannedRequest]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of requests at once: the next arrives when one ends, whatever its planned time."""

    source: Iterable[PlannedRequest]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """The outcome of a request; times in seconds. `tokens` has the time of each output token.

    `end` is None for one that was still live, `reason` then too. A request that was refused has `refused`.
    """

    planned: PlannedRequest
    arrival: float
    tokens: tuple[float, ...] = ()
    end: float | None = None
    reason: FinishReason | None = None
    refused: RejectReason | None = None
    preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in pairwise(self.tokens)]

    @property
    def e2e(self) -> float | None:
        """Seconds to the end."""
        return None if self.end is None else self.end - self.arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class SimStep:
    """One step: when it began, how long it took, its rows, and the output tokens it gave."""

    at: float
    seconds: float
    generation: int
    decode_tokens: int
    prefill_tokens: int
    sampled: int
    preempted: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRun:
    """One call of `run`: what ended or was refused in it, its steps, and what was live when it returned."""

    outcomes: tuple[RequestOutcome, ...]
    live: tuple[RequestOutcome, ...]
    steps: tuple[SimStep, ...]
    begin: float
    end: float

    @property
    def completed(self) -> int:
        """Requests that ended by themselves."""
        return sum(outcome.end is not None for outcome in self.outcomes)

    @property
    def tokens(self) -> int:
        """Output tokens, including those of requests that have not ended."""
        return sum(step.sampled for step in self.steps)

    @property
    def seconds(self) -> float:
        """Virtual time that passed."""
        return self.end - self.begin


@dataclass(slots=True)
class _Live:
    planned: PlannedRequest
    arrival: float
    tokens: list[float] = field(default_factory=list)
    preemptions: int = 0

    def outcome(self, *, end: float | None = None, reason: FinishReason | None = None) -> RequestOutcome:
        return RequestOutcome(
            planned=self.planned, arrival=self.arrival, tokens=tuple(self.tokens), end=end, reason=reason,
            preemptions=self.preemptions,
        )  # fmt: skip


class Simulator:
    """Steps one engine through one load. `changes` are hot knobs by the time from which they are in force."""

    def __init__(
        self, engine: SimulatedEngine, load: OpenLoop | ClosedLoop, *,
        changes: Sequence[tuple[float, Mapping[str, object]]] = (),
    ) -> None:  # fmt: skip
        self.scheduler = Scheduler(engine.config, num_blocks=engine.num_blocks, max_model_len=engine.max_model_len)
        self.now = 0.0
        self._engine = engine
        self._jitter = random.Random(engine.seed)  # noqa: S311  (repeatable, not secret)
        self._changes = deque(sorted(changes, key=lambda change: change[0]))
        self._source: _Source = _Planned(load.plan) if isinstance(load, OpenLoop) else _Refilled(load)
        self._live: dict[str, _Live] = {}
        self._outcomes: list[RequestOutcome] = []
        self._number = 0

    def run(self, *, until: float | None = None, steps: int | None = None, requests: int | None = None) -> SimRun:
        """Run until the first limit is reached, or nothing is left to do.

        `until` is a time: no step begins at or after it. `steps` and `requests` count from here; with several requests
        ending in the last step there may be a few more. An endless load needs a limit, one that is refused throughout
        another than `steps`. Raises `SimulationError` for a change that is refused.
        """
        begin, self._outcomes = self.now, []
        taken = list(islice(self._steps(until, requests), steps))
        live = tuple(live.outcome() for live in self._live.values())
        return SimRun(outcomes=tuple(self._outcomes), live=live, steps=tuple(taken), begin=begin, end=self.now)

    def reconfigure(self, changes: Mapping[str, object]) -> None:
        """Change hot knobs from the next step on. Raises `SimulationError` with the scheduler's reasons."""
        answer = self.scheduler.reconfigure(changes, self.now)
        if isinstance(answer, ChangeRefused):
            said = "; ".join(f"{problem.knob}: {problem.message}" for problem in answer.problems)
            raise SimulationError(f"the simulated engine refused {dict(changes)} at {self.now:.3f} s: {said}")

    def _steps(self, until: float | None, requests: int | None) -> Iterator[SimStep]:
        while True:
            for planned, arrival in self._source.due(self.now, len(self._live)):
                self._submit(planned, arrival)
            if requests is not None and len(self._outcomes) >= requests:
                return
            if self._live:
                if until is not None and self.now >= until:
                    return
                yield self._step()
            elif not self._jump(until):
                return

    def _jump(self, until: float | None) -> bool:
        """Let time pass to the next arrival; False if there is none before `until`."""
        following = self._source.next_at
        if following is None:
            return False
        if until is not None and following >= until:
            self.now = max(self.now, until)
            return False
        self.now = max(self.now, following)
        return True

    def _step(self) -> SimStep:
        begin = self.now
        self._change()
        plan = self.scheduler.plan(begin)
        if plan is None:
            raise AssertionError("unreachable: a live request can always run")
        self._check()
        seconds = self._engine.step_time(plan) / self._engine.speed(begin)
        if self._engine.jitter:
            seconds *= self._jitter.lognormvariate(0.0, self._engine.jitter)
        self.now = begin + seconds
        result = StepResult(tokens={seq.request_id: SAMPLED for seq in plan.seqs if seq.samples})
        for outcome in self.scheduler.commit(plan, result, self.now):
            match outcome:
                case Token(request_id):
                    self._live[request_id].tokens.append(self.now)
                case Preempted(request_id):
                    self._live[request_id].preemptions += 1
                case Finished(request_id, reason):
                    self._outcomes.append(self._live.pop(request_id).outcome(end=self.now, reason=reason))
        self._check()
        prefills = plan.num_prefill_tokens
        return SimStep(
            at=begin, seconds=seconds, generation=plan.generation, decode_tokens=plan.num_tokens - prefills,
            prefill_tokens=prefills, sampled=len(result.tokens), preempted=len(plan.preempted),
            waiting=len(self.scheduler.state.waiting),
        )  # fmt: skip

    def _change(self) -> None:
        while self._changes and self._changes[0][0] <= self.now:
            self.reconfigure(self._changes.popleft()[1])

    def _submit(self, planned: PlannedRequest, arrival: float) -> None:
        self._number += 1
        request = Request(
            request_id=str(self._number), prompt_token_ids=_prompt(planned, self._number),
            max_tokens=planned.output_tokens, arrival=arrival,
        )  # fmt: skip
        answer = self.scheduler.submit(request, self.now)
        if isinstance(answer, Rejected):
            self._outcomes.append(RequestOutcome(planned=planned, arrival=arrival, refused=answer.reason))
        else:
            self._live[request.request_id] = _Live(planned, arrival)

    def _check(self) -> None:
        if self._engine.check:
            invariants.check(self.scheduler)


class _Source(Protocol):
    """Where requests come from."""

    @property
    def next_at(self) -> float | None:
        """When the next one arrives if nothing is live. None: never."""
        ...

    def due(self, now: float, live: int) -> Iterator[tuple[PlannedRequest, float]]:
        """What arrives by `now`, with its time of arrival."""
        ...


class _Planned:
    def __init__(self, plan: Iterable[PlannedRequest]) -> None:
        self._plan = iter(plan)
        self._next = next(self._plan, None)

    @property
    def next_at(self) -> float | None:
        return None if self._next is None else self._next.at

    def due(self, now: float, live: int) -> Iterator[tuple[PlannedRequest, float]]:
        del live
        while self._next is not None and self._next.at <= now:
            planned, self._next = self._next, next(self._plan, None)
            yield planned, planned.at


class _Refilled:
    """Each place is filled once a step: a request that is refused leaves it empty until the next."""

    next_at = None

    def __init__(self, load: ClosedLoop) -> None:
        self._source, self._concurrency = iter(load.source), load.concurrency

    def due(self, now: float, live: int) -> Iterator[tuple[PlannedRequest, float]]:
        for planned in islice(self._source, max(0, self._concurrency - live)):
            yield planned, now


def _prompt(planned: PlannedRequest, number: int) -> tuple[int, ...]:
    """Token ids: nothing is shared but the prefix of a group, whatever the cache does."""
    shared = (FIRST_SHARED + planned.prefix_group,) * planned.prefix_tokens
    return (*shared, FIRST_OWN + number, *(SAMPLED,) * (planned.prompt_tokens - planned.prefix_tokens - 1))
