"""What a mode can carry, before it is measured: the engine's own scheduler on a clock of measured step times. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_bench.modes.design import Calibration, Design, Mode
from headrace_core.scheduler.events import Finished, Request, StepResult, Token
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.workload.plans import PlannedRequest, endless

STEPS = 1500
SEED = 11
ANY_TOKEN = 1


@dataclass(frozen=True, slots=True)
class Predicted:
    """A closed loop on the simulated engine: requests ended, tokens generated, in how many seconds."""

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
    simulation = _Simulation(design, calibration, mode, endless(design.shape, seed))
    taken = 0
    while simulation.now < duration if duration is not None else taken < steps:
        simulation.step()
        taken += 1
    return Predicted(simulation.ended, simulation.tokens, simulation.now)


def batch_seconds(design: Design, calibration: Calibration) -> float:
    """Mean seconds that a batch takes under static batching."""
    predicted = predict(design, calibration, Mode.STATIC)
    batches = max(1.0, predicted.requests / design.max_num_seqs)
    return predicted.seconds / batches


class _Simulation:
    def __init__(self, design: Design, calibration: Calibration, mode: Mode, source: Iterator[PlannedRequest]) -> None:
        config = design.config(mode)
        longest = design.shape.longest
        blocks = 2 + 2 * design.max_num_seqs * (longest // config.block_size + 2)
        self._scheduler = Scheduler(config, num_blocks=blocks, max_model_len=longest + 1)
        self._calibration, self._source = calibration, source
        self.now, self.ended, self.tokens, self._number = 0.0, 0, 0, 0
        for _ in range(2 * design.max_num_seqs):
            self._submit()

    def step(self) -> None:
        plan = self._scheduler.plan(self.now)
        if plan is None:
            raise AssertionError("unreachable: a closed loop always has work")
        self.now += self._calibration.step(sum(len(seq.token_ids) for seq in plan.seqs))
        result = StepResult(tokens={seq.request_id: ANY_TOKEN for seq in plan.seqs if seq.samples})
        for outcome in self._scheduler.commit(plan, result, self.now):
            self.tokens += isinstance(outcome, Token)
            if isinstance(outcome, Finished):
                self.ended += 1
                self._submit()

    def _submit(self) -> None:
        planned = next(self._source)
        self._number += 1
        request = Request(
            request_id=str(self._number),
            # Every prompt is its own, so that nothing is shared whatever the cache does.
            prompt_token_ids=(self._number, *[ANY_TOKEN] * (planned.prompt_tokens - 1)),
            max_tokens=planned.output_tokens,
            arrival=self.now,
            stop_token_ids=frozenset(),
        )
        self._scheduler.submit(request, self.now)
