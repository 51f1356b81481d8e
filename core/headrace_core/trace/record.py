"""A scheduler that records every call with its arguments and its answer, for `replay`.

Recordings hold the token ids of prompts and outputs, so they are as confidential as the conversations themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import (
    Admitted,
    ChangeRefused,
    Finished,
    FinishReason,
    Outcome,
    Reconfigured,
    Rejected,
    Request,
    StepPlan,
    StepResult,
)
from headrace_core.scheduler.observer import SchedulerObserver
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace import format as fmt

T = TypeVar("T")


class RecordingScheduler(Scheduler):
    """`write` gets one line, with its newline, for the header and then for each call that can change something.

    If `write` raises (a full disk), recording ends but scheduling goes on; `broken` then says why. What was written
    up to that point can be replayed.
    """

    def __init__(
        self, config: EngineConfig, *, num_blocks: int, max_model_len: int, cache_namespace: str = "",
        write: Callable[[str], object], observer: SchedulerObserver | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            config, num_blocks=num_blocks, max_model_len=max_model_len, cache_namespace=cache_namespace,
            observer=observer,
        )  # fmt: skip
        self._write = write
        self._plans = fmt.PlanWriter()
        self.broken: str | None = None
        self._line(
            fmt.header(config, num_blocks=num_blocks, max_model_len=max_model_len, cache_namespace=cache_namespace)
        )

    def submit(self, request: Request, now: float) -> Admitted | Rejected:
        """See `Scheduler`."""
        args = fmt.request_to_json(request)
        return self._record("submit", args, now, lambda: Scheduler.submit(self, request, now), fmt.admission_to_json)

    def finish(self, request_id: str, reason: FinishReason, now: float) -> Finished | None:
        """See `Scheduler`. `abort` calls this too."""
        args = {"id": request_id, "reason": str(reason)}
        call = lambda: Scheduler.finish(self, request_id, reason, now)  # noqa: E731
        return self._record("finish", args, now, call, self._finished)

    def plan(self, now: float) -> StepPlan | None:
        """See `Scheduler`."""
        return self._record("plan", {}, now, lambda: Scheduler.plan(self, now), self._plans.to_json)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Outcome, ...]:
        """See `Scheduler`."""
        args = {"step": plan.step, "in_flight": plan == self.in_flight, **fmt.result_to_json(result)}
        return self._record("commit", args, now, lambda: Scheduler.commit(self, plan, result, now), self._outcomes)

    def reconfigure(self, changes: Mapping[str, object], now: float) -> Reconfigured | ChangeRefused:
        """See `Scheduler`."""
        call = lambda: Scheduler.reconfigure(self, changes, now)  # noqa: E731
        return self._record("reconfigure", dict(changes), now, call, fmt.change_to_json)

    def expect(self, output_lengths: Sequence[int], now: float) -> None:
        """See `Scheduler`."""
        args = {"lengths": list(output_lengths)}
        self._record("expect", args, now, lambda: Scheduler.expect(self, output_lengths, now), lambda none: none)

    def _outcomes(self, outcomes: tuple[Outcome, ...]) -> list[object]:
        for outcome in outcomes:
            if isinstance(outcome, Finished):
                self._plans.forget(outcome.request_id)
        return [fmt.outcome_to_json(outcome) for outcome in outcomes]

    def _finished(self, answer: Finished | None) -> object:
        return None if answer is None else self._outcomes((answer,))

    def _record(
        self, name: str, args: Mapping[str, object], now: float, call: Callable[[], T], encode: Callable[[T], object]
    ) -> T:
        try:
            answer = call()
        except Exception as error:
            self._line({"call": name, "args": args, "now": now, "raised": f"{type(error).__name__}: {error}"})
            raise
        self._line({"call": name, "args": args, "now": now, "answer": encode(answer)})
        return answer

    def _line(self, data: Mapping[str, object]) -> None:
        if self.broken is not None:
            return
        try:
            self._write(fmt.canonical(data) + "\n")
        except Exception as error:  # whatever the driver's function raises must not stop the engine
            self.broken = f"{type(error).__name__}: {error}"
