"""Run a step so that one bad request does not fail the others: if the forward raises, retry requests one by one."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_core.scheduler.events import ScheduledSeq, StepPlan
from headrace_engine.loop.runner import CopyError, ModelRunner, StepOutput
from headrace_engine.outputs import RequestProblem
from headrace_engine.sampling.token_state import TokenState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a step. `problem` is the error that its forward raised, if any; `all_failed`: none succeeded."""

    output: StepOutput
    problem: str | None = None
    all_failed: bool = False


def run_step(runner: ModelRunner, plan: StepPlan, states: Mapping[str, TokenState]) -> Attempt:
    """Run `plan`. If that raises, run it again one sequence at a time, each with the forks that sample from it.

    Running again is harmless: it writes the same keys and values to the same slots, and `states` has not changed.
    Copies of blocks are not repeated.
    """
    try:
        return Attempt(runner.run(plan, states))
    except Exception as error:
        log.exception("step %d failed", plan.step, extra={"requests": len(plan.seqs), "tokens": plan.num_tokens})
        problem = f"the model's forward pass failed: {type(error).__name__}: {error}"
        families = list(_families(plan.seqs))
        if isinstance(error, CopyError) or len(families) == 1:
            return Attempt(_failed(plan.seqs, problem), problem, all_failed=True)
    outputs = [_run_alone(runner, plan, family, states) for family in families]
    saved = sum(len(family) - len(output.failed) for family, output in zip(families, outputs, strict=True))
    log.warning("step %d: %d of %d requests succeeded when retried alone", plan.step, saved, len(plan.seqs))
    return Attempt(_merged(outputs), problem, all_failed=saved == 0)


def _run_alone(
    runner: ModelRunner, plan: StepPlan, family: tuple[ScheduledSeq, ...], states: Mapping[str, TokenState]
) -> StepOutput:
    own = {seq.request_id: states[seq.request_id] for seq in family if seq.request_id in states}
    try:
        return runner.run(replace(plan, seqs=family, copies=()), own)
    except Exception as error:
        log.exception("request failed alone", extra={"request_id": family[0].request_id})
        return _failed(family, f"the model's forward pass failed for this request: {type(error).__name__}: {error}")


def _families(seqs: Iterable[ScheduledSeq]) -> Iterable[tuple[ScheduledSeq, ...]]:
    """Each sequence that has rows, with the forks that sample from it."""
    families: dict[str, list[ScheduledSeq]] = {}
    for seq in seqs:
        families.setdefault(seq.fork_of or seq.request_id, []).append(seq)
    return map(tuple, families.values())


def _failed(seqs: Iterable[ScheduledSeq], problem: str) -> StepOutput:
    problems = {seq.request_id: RequestProblem(problem) for seq in seqs}
    return StepOutput(tokens={}, failed=frozenset(problems), problems=problems)


def _merged(outputs: Sequence[StepOutput]) -> StepOutput:
    problems = dict(ChainMap(*(dict(output.problems) for output in outputs)))
    return StepOutput(
        tokens=dict(ChainMap(*(dict(output.tokens) for output in outputs))),
        failed=frozenset(problems),
        scores=dict(ChainMap(*(dict(output.scores) for output in outputs))),
        prompt_scores=dict(ChainMap(*(dict(output.prompt_scores) for output in outputs))),
        problems=problems,
    )
