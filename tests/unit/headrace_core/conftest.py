"""Makers: a scheduler driven by hand, token by token."""

from collections.abc import Callable, Sequence

import pytest

from headrace_core import invariants
from headrace_core.config import resolve
from headrace_core.events import Admitted, Outcome, Rejected, Request, StepPlan, StepResult
from headrace_core.scheduler import Scheduler


class Driver:
    """A scheduler and its driver. Every sampled token is 100, and time is the number of calls."""

    def __init__(self, *, num_blocks: int = 1000, max_model_len: int = 1000, **knobs: object) -> None:
        knobs = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4} | knobs
        self.scheduler = Scheduler(resolve(knobs), num_blocks=num_blocks, max_model_len=max_model_len)
        self.now = 0.0

    def submit(
        self, request_id: str, prompt: int, output: int = 10, *, stop: Sequence[int] = (), priority: int = 0
    ) -> Admitted | Rejected:
        self.now += 1
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(range(prompt)),
            max_tokens=output,
            arrival=self.now,
            stop_token_ids=frozenset(stop),
            priority=priority,
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
        """Run one step; 'a1 b+4' means that a decoded and 4 positions of b were prefilled, '!' that b sampled."""
        plan = self.plan()
        self.commit(plan)
        return shorthand(plan)

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]


def shorthand(plan: StepPlan) -> str:
    rows = [
        f"{row.request_id}+{row.num_tokens}{'!' if row.samples else ''}" if row.is_prefill else f"{row.request_id}1"
        for row in plan.seqs
    ]
    return " ".join([*(f"-{request_id}" for request_id in plan.preempted), *rows])


@pytest.fixture
def driver() -> Callable[..., Driver]:
    return Driver
