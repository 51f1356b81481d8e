"""How the story should go on this machine: its load on the simulator, with measured step times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import resolve
from headrace_core.sim.calibration import Calibration
from headrace_core.sim.simulator import OpenLoop, RequestOutcome, SimRun, SimulatedEngine, Simulator
from headrace_core.workload.plans import Workload, derive_seed, plan_load
from headrace_local.demo import story as told
from headrace_local.demo.story import Story

JITTER = 0.1  # sigma of a step's lognormal noise
BLOCKS, CONTEXT = 4000, 4096  # more than the load needs: the demo is not about memory
WINDOWS = 6  # simulated for one prediction


def play(
    story: Story, calibration: Calibration, knobs: Mapping[str, object], *, seed: int, speed: float = 1.0
) -> SimRun:  # fmt: skip
    """One window of the load under `knobs`, until its last request has ended, at `speed` times the calibrated speed."""
    load = Workload(
        rate=story.rate, duration=story.window, short_prompt_tokens=told.SHORT_PROMPT,
        output_tokens=told.OUTPUT_TOKENS, long_prompt_tokens=told.LONG_PROMPT, long_share=told.LONG_SHARE,
    )  # fmt: skip
    engine = SimulatedEngine(
        config=resolve(knobs), step_time=calibration.step_seconds, num_blocks=BLOCKS, max_model_len=CONTEXT,
        speed=lambda _: speed, jitter=JITTER, seed=seed,
    )  # fmt: skip
    return Simulator(engine, OpenLoop(plan_load(load, seed))).run()


def keeps_slo(story: Story, outcome: RequestOutcome) -> bool:
    """Whether an ended request met the story's SLO."""
    slo = SloSet(ttft_seconds=story.ttft, itl_seconds=story.itl)
    return outcome.ttft is not None and slo.judge(outcome.ttft, outcome.gaps, outcome.e2e or 0.0)


def predicted_attainment(story: Story, calibration: Calibration, knobs: Mapping[str, object]) -> float:
    """Share of requests that should meet the SLO under `knobs`, 0 to 1."""
    runs = (play(story, calibration, knobs, seed=derive_seed("predict", number)) for number in range(WINDOWS))
    return _share(keeps_slo(story, outcome) for run in runs for outcome in run.outcomes)


def _share(truths: Iterable[bool]) -> float:
    found = list(truths)
    return sum(found) / len(found)
