"""The demo's verdict is no matter of luck: its load, played through the real scheduler, is told apart nearly always.

Step times come from a calibration, so that what is played is what the demo asks of that machine; `speed` is what
neighbours make of it afterwards.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.slo import SloSet
from headrace_core.evidence.verdict import RateKind, WindowPair, paired_ratio
from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import Request, StepPlan, StepResult, Token
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.workload.plans import PlannedRequest, Workload, derive_seed, plan_load
from headrace_local.demo import story
from headrace_local.demo.story import Calibration, Story, tell

# A 2-core EPYC with AVX2, fp32, one thread.
MACHINE = Calibration(
    model="SmolLM2-135M-Instruct", device="cpu", dtype="float32", cpu_features=("avx2", "fma", "f16c"), threads=1,
    decode={1: 0.063, 2: 0.112, 4: 0.143, 8: 0.141, 16: 0.217},
    prefill={32: 0.184, 64: 0.283, 128: 0.479, 256: 0.850, 512: 1.804},
)  # fmt: skip
FAST = replace(
    MACHINE,
    decode={size: seconds / 8 for size, seconds in MACHINE.decode.items()},
    prefill={size: seconds / 8 for size, seconds in MACHINE.prefill.items()},
)
BAD = {"max_num_batched_tokens": story.BAD_CHUNK, "prefill_chunk_size": story.BAD_CHUNK, "max_num_seqs": 32}
GOOD = {"max_num_batched_tokens": 128, "prefill_chunk_size": 64, "max_num_seqs": 16, "decode_ratio": 0.25}
RUNS = 24


def step_seconds(machine: Calibration, plan: StepPlan) -> float:
    """A mixed step reads the weights once: the decodes beside a chunk cost a part of what they cost alone."""
    if not plan.num_prefill_tokens:
        return machine.decode_step(plan.num_decode_tokens)
    beside = 0.6 * machine.decode_step(plan.num_decode_tokens) if plan.num_decode_tokens else 0.0
    return machine.prefill_step(plan.num_prefill_tokens) + beside


def token_times(
    machine: Calibration, load: Sequence[PlannedRequest], knobs: dict[str, Any], *, seed: int, speed: float
) -> dict[str, list[float]]:
    """When each request got its tokens."""
    jitter = random.Random(seed)
    scheduler = Scheduler(resolve(knobs), num_blocks=4000, max_model_len=4096)
    times: dict[str, list[float]] = {str(at): [] for at in range(len(load))}
    now, sent = 0.0, 0
    while sent < len(load) or scheduler.has_work:
        now = now if scheduler.has_work else max(now, load[sent].at)
        while sent < len(load) and load[sent].at <= now:
            prompt = tuple(jitter.randrange(10**6) for _ in range(load[sent].prompt_tokens))
            name, tokens, arrival = str(sent), load[sent].output_tokens, load[sent].at
            scheduler.submit(Request(request_id=name, prompt_token_ids=prompt, max_tokens=tokens, arrival=arrival), now)
            sent += 1
        plan = scheduler.plan(now)
        assert plan is not None
        now += step_seconds(machine, plan) / speed * jitter.lognormvariate(0, 0.1)
        result = StepResult(tokens={row.request_id: 7 for row in plan.seqs if row.samples})
        for outcome in scheduler.commit(plan, result, now):
            if isinstance(outcome, Token):
                times[outcome.request_id].append(now)
    return times


def window(told: Story, machine: Calibration, knobs: dict[str, Any], *, seed: int, speed: float) -> tuple[Counts, ...]:
    """Good requests and all requests, in each half of a window."""
    load = plan_load(
        Workload(
            rate=told.rate, duration=told.window, short_prompt_tokens=story.SHORT_PROMPT,
            output_tokens=story.OUTPUT_TOKENS, long_prompt_tokens=story.LONG_PROMPT, long_share=story.LONG_SHARE,
        ),
        seed,
    )  # fmt: skip
    slo = SloSet(ttft_seconds=told.ttft, itl_seconds=told.itl)
    counts = [[0, 0], [0, 0]]
    for name, times in token_times(machine, load, knobs, seed=seed, speed=speed).items():
        arrival = load[int(name)].at
        gaps = [after - before for before, after in pairwise(times)]
        half = counts[times[-1] > told.window / 2]
        half[0] += slo.judge(times[0] - arrival, gaps, times[-1] - arrival)
        half[1] += 1
    return tuple(Counts(good=good, requests=requests, seconds=told.window / 2) for good, requests in counts)


@pytest.mark.parametrize("speed", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("machine", [MACHINE, FAST], ids=["slow", "fast"])
def test_the_verdict_is_improved_in_nearly_all_runs(machine: Calibration, speed: float) -> None:
    told = tell(machine)
    improved = 0
    for run in range(RUNS):
        seeds = [derive_seed(run, block) for block in range(told.blocks)]
        pairs = [
            WindowPair(
                baseline=window(told, machine, BAD, seed=seed, speed=speed),
                candidate=window(told, machine, GOOD, seed=seed, speed=speed),
            )
            for seed in seeds
        ]
        improved += paired_ratio(pairs, rate=RateKind.GOODPUT, confidence=0.9).low > 1.02
    assert improved >= 0.85 * RUNS
