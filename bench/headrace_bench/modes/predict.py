"""Predicts a mode's capacity before it is measured: the simulator on measured step times. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_bench.modes.design import Design, Mode
from headrace_core.sim.calibration import Calibration
from headrace_core.sim.simulator import ClosedLoop, SimulatedEngine, Simulator
from headrace_core.workload.plans import endless

STEPS = 1500
SEED = 11


@dataclass(frozen=True, slots=True)
class Predicted:
    """A closed loop on the simulated engine: requests ended, tokens generated, and the seconds that took."""

    requests: int
    tokens: int
    seconds: float

    @property
    def requests_per_second(self) -> float:
        """Throughput."""
        return self.requests / self.seconds if self.seconds else 0.0


def predict(
    design: Design, calibration: Calibration, mode: Mode, *, duration: float | None = None, steps: int = STEPS,
    seed: int = SEED,
) -> Predicted:  # fmt: skip
    """Run `steps` steps, or `duration` seconds, with twice as many requests as the batch holds."""
    config, longest = design.config(mode), design.shape.longest
    engine = SimulatedEngine(
        config=config,
        step_time=calibration.step_seconds,
        num_blocks=2 + 2 * design.max_num_seqs * (longest // config.block_size + 2),
        max_model_len=longest + 1,
    )
    simulator = Simulator(engine, ClosedLoop(endless(design.shape, seed), 2 * design.max_num_seqs))
    run = simulator.run(until=duration) if duration is not None else simulator.run(steps=steps)
    return Predicted(run.completed, run.tokens, run.seconds)


def batch_seconds(design: Design, calibration: Calibration) -> float:
    """Mean seconds that a batch takes under static batching."""
    predicted = predict(design, calibration, Mode.STATIC)
    batches = max(1.0, predicted.requests / design.max_num_seqs)
    return predicted.seconds / batches
