"""The demo's verdict does not depend on luck: its load, on the simulator, is told apart nearly always.

Step times come from a calibration, so that what is played is what the demo asks of that machine; `speed` is what
neighbours make of it afterwards.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace_core.evidence.counts import Counts
from headrace_core.evidence.verdict import RateKind, WindowPair, paired_ratio
from headrace_core.sim.calibration import Calibration
from headrace_core.workload.plans import derive_seed
from headrace_local.demo.predict import keeps_slo, play, predicted_attainment
from headrace_local.demo.story import BAD_KNOBS, GOOD_KNOBS, Story, tell

# A 2-core EPYC with AVX2, fp32, one thread.
MACHINE = Calibration(
    decode={1: 0.063, 2: 0.112, 4: 0.143, 8: 0.141, 16: 0.217},
    prefill={32: 0.184, 64: 0.283, 128: 0.479, 256: 0.850, 512: 1.804},
    facts={"threads": 1},
)
FAST = replace(
    MACHINE,
    decode={size: seconds / 8 for size, seconds in MACHINE.decode.items()},
    prefill={size: seconds / 8 for size, seconds in MACHINE.prefill.items()},
)
RUNS = 24


def window(
    told: Story, machine: Calibration, knobs: Mapping[str, object], *, seed: int, speed: float
) -> tuple[Counts, ...]:  # fmt: skip
    """Good requests and all requests, in each half of a window."""
    counts = [[0, 0], [0, 0]]
    for outcome in play(told, machine, knobs, seed=seed, speed=speed).outcomes:
        half = counts[outcome.tokens[-1] > told.window / 2]
        half[0] += keeps_slo(told, outcome)
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
                baseline=window(told, machine, BAD_KNOBS, seed=seed, speed=speed),
                candidate=window(told, machine, GOOD_KNOBS, seed=seed, speed=speed),
            )
            for seed in seeds
        ]
        improved += paired_ratio(pairs, rate=RateKind.GOODPUT, confidence=0.9).low > 1.02
    assert improved >= 0.85 * RUNS


@pytest.mark.parametrize("machine", [MACHINE, FAST], ids=["slow", "fast"])
def test_the_slo_is_missed_with_whole_prompts_and_met_with_slices(machine: Calibration) -> None:
    told = tell(machine)
    assert predicted_attainment(told, machine, BAD_KNOBS) < 0.6
    assert predicted_attainment(told, machine, GOOD_KNOBS) > told.attainment
