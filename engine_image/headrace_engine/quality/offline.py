"""Drive a scheduler and a runner over a list of jobs without server, threads or clock.

Time is virtual: a step takes one second. At most `concurrency` jobs are in flight; when one ends, the next starts. So
the steps, and with them every batch, chunk and preemption, depend only on the config and the order of the jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from headrace_core.scheduler.events import (
    Finished,
    FinishReason,
    Rejected,
    RejectReason,
    Request,
    ScheduledSeq,
    StepPlan,
    StepResult,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.kv_cache import KvPool
from headrace_engine.errors import SettingsError
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.model.loading import LoadedModel
from headrace_engine.sampling.params import SamplingParams

CROWD = 512  # how many ended requests admission remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRequest:
    """One request, run greedily. With `reads_cache` false every prompt position is computed."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    reads_cache: bool = True


class WatchedRunner(ModelRunner):
    """The engine's runner, keeping logits. `seen` has those of the newest step: a row for each sequence that samples.

    With `every_row`, `rows` has the logits of all rows of the step, prompts included, from the same forward.
    """

    def __init__(self, model: LoadedModel, pool: KvPool, backend: AttentionBackend, *, every_row: bool = False) -> None:
        super().__init__(model, pool, backend)
        self.seen = self.rows = torch.empty(0)
        self._every_row = every_row

    def logits(self, seqs: Sequence[ScheduledSeq], also: Sequence[int] = ()) -> torch.Tensor:
        """The runner's logits, kept in `seen` and `rows` as well."""
        extra = range(sum(seq.num_tokens for seq in seqs)) if self._every_row else ()
        logits = super().logits(seqs, [*also, *extra])
        asked = len(logits) - len(extra)
        self.seen, self.rows = logits[: asked - len(also)], logits[asked:]
        return logits[:asked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """An engine without a loop. Both runners share one pool; `all_rows` is the one that keeps every row's logits."""

    scheduler: Scheduler
    runner: WatchedRunner
    all_rows: WatchedRunner

    @classmethod
    def over(cls, model: LoadedModel, pool: KvPool, backend: AttentionBackend, *, scheduler: Scheduler) -> Offline:
        """An offline engine with both runners of `model` over `pool`."""
        runner, all_rows = (WatchedRunner(model, pool, backend, every_row=every_row) for every_row in (False, True))
        return cls(scheduler=scheduler, runner=runner, all_rows=all_rows)


def crowd(scheduler: Scheduler) -> None:
    """Make admission expect outputs of one token, so it admits more than memory holds and must preempt.

    Otherwise it foresees the peak and makes requests wait, and even a small pool would never preempt.
    """
    scheduler.expect([1] * CROWD, 0.0)


# Called with each step's plan and the runner's result; returns the result to commit.
Watch = Callable[[StepPlan, StepResult], StepResult]


def drive(
    scheduler: Scheduler, runner: ModelRunner, jobs: Sequence[OfflineRequest], *, concurrency: int, watch: Watch,
    ended: Callable[[str], None] = lambda _: None,
) -> frozenset[str]:  # fmt: skip
    """Run all jobs; return the names of those that failed (a row of NaN). Calls `ended` with the name of each job.

    Raises `SettingsError` for a job that cannot run under the config.
    """
    params = {job.name: SamplingParams(prompt_len=len(job.prompt)) for job in jobs}
    waiting, live, failed, now = deque(jobs), set[str](), set[str](), 0.0
    while waiting or live:
        _submit(scheduler, waiting, live, concurrency=concurrency, now=now)
        plan = scheduler.plan(now)
        if plan is None:
            raise RuntimeError(f"{sorted(live)} are live but nothing is planned: {scheduler!r}")
        now += 1.0
        result = watch(plan, runner.run(plan, params))
        for outcome in scheduler.commit(plan, result, now):
            if isinstance(outcome, Finished):
                live.discard(outcome.request_id)
                if outcome.reason is FinishReason.ERROR:
                    failed.add(outcome.request_id)
                ended(outcome.request_id)
    return frozenset(failed)


def _submit(
    scheduler: Scheduler, waiting: deque[OfflineRequest], live: set[str], *, concurrency: int, now: float
) -> None:
    while waiting and len(live) < concurrency:
        job = waiting[0]
        answer = scheduler.submit(
            Request(
                request_id=job.name, prompt_token_ids=job.prompt, max_tokens=job.max_tokens, arrival=now,
                reads_cache=job.reads_cache,
            ),
            now,
        )  # fmt: skip
        if isinstance(answer, Rejected):
            if answer.reason is RejectReason.QUEUE_FULL and live:
                return
            raise SettingsError(f"text {job.name} cannot run under this config: {answer.message}")
        live.add(job.name)
        waiting.popleft()
