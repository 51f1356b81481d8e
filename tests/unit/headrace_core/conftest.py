"""Makers: a scheduler driven by hand, token by token."""

from collections.abc import Callable, Sequence

import pytest

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler import invariants
from headrace_core.scheduler.events import (
    Admitted,
    Outcome,
    Rejected,
    Request,
    ScheduledSeq,
    StepPlan,
    StepResult,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace.history import History


class Driver:
    """A scheduler and its driver. Every sampled token is 100, and time is the number of calls.

    A prompt given as a number is that many tokens that no other prompt has. `expected` are output lengths of requests
    that have ended before, from which admission predicts those of new ones.
    """

    def __init__(
        self, *, num_blocks: int = 1000, max_model_len: int = 1000, expected: Sequence[int] = (),
        cache_namespace: str = "", **knobs: object,
    ) -> None:  # fmt: skip
        knobs = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4} | knobs
        self.history = History()
        self.scheduler = Scheduler(
            resolve(knobs),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            cache_namespace=cache_namespace,
            observer=self.history,
        )
        self.scheduler.expect(expected, 0.0)
        self.now = 0.0
        self._next_prompt = 1000

    def submit(
        self, request_id: str, prompt: int | Sequence[int], output: int = 10, *, stop: Sequence[int] = (),
        **fields: object,
    ) -> Admitted | Rejected:  # fmt: skip
        self.now += 1
        if isinstance(prompt, int):
            self._next_prompt += 1000
            prompt = range(self._next_prompt, self._next_prompt + prompt)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            max_tokens=output,
            arrival=self.now,
            stop_token_ids=frozenset(stop),
            **fields,
        )
        return self.scheduler.submit(request, self.now)

    def plan(self) -> StepPlan:
        self.now += 1
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        invariants.check(self.scheduler)
        return plan

    def commit(self, plan: StepPlan, *, failed: Sequence[str] = ()) -> tuple[Outcome, ...]:
        self.now += 1
        tokens = {row.request_id: 100 for row in plan.seqs if row.samples}
        outcomes = self.scheduler.commit(plan, StepResult(tokens=tokens, failed=frozenset(failed)), self.now)
        invariants.check(self.scheduler)
        return outcomes

    def step(self) -> str:
        """Run one step and tell it in shorthand."""
        plan = self.plan()
        self.commit(plan)
        return self.shorthand(plan)

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]

    @staticmethod
    def shorthand(plan: StepPlan) -> str:
        """'-c a1 b+4!': c was evicted, a decodes, 4 positions of b are prefilled, b samples; 'd<b!': d forks from b."""
        return " ".join([*(f"-{request_id}" for request_id in plan.preempted), *map(_row, plan.seqs)])


def _row(row: ScheduledSeq) -> str:
    if not row.is_prefill:
        return f"{row.request_id}1"
    what = f"<{row.fork_of}" if row.fork_of is not None else f"+{row.num_tokens}"
    return f"{row.request_id}{what}{'!' if row.samples else ''}"


@pytest.fixture
def driver() -> Callable[..., Driver]:
    return Driver
