"""The study's loop: asks `phases` for the next action, does it, records it, and only then asks again."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace_api.v1alpha1.knobs import HotKnobs
from headrace_api.v1alpha1.record_codec import AnyRecord, StudyRecords
from headrace_api.v1alpha1.records import (
    Candidate,
    Half,
    RunPhase,
    StudyRecord,
    TrialRecord,
    TrialState,
    VerificationRecord,
)
from headrace_api.v1alpha1.tuningrun import SamplerSpec
from headrace_core.errors import HeadraceError
from headrace_core.evidence.windows import VoidKind
from headrace_core.knobs.resolve import EngineConfig
from headrace_core.knobs.table import KnobValue
from headrace_core.workload.plans import derive_seed
from headrace_tuner.errors import TrialVoid, TunerError
from headrace_tuner.ladder.rules import refusal
from headrace_tuner.measure.window import MeasuredWindow, WindowMeter
from headrace_tuner.records.store import Store
from headrace_tuner.study.conclusion import conclude, progress
from headrace_tuner.study.phases import (
    Conclude,
    KeepLoad,
    Prepare,
    RunTrial,
    StudyFinished,
    StudyPlan,
    Verify,
    next_action,
)
from headrace_tuner.study.sampler import propose
from headrace_tuner.study.space import Space
from headrace_tuner.targets.base import KnobsRefused

log = logging.getLogger(__name__)
Knobs = Mapping[str, KnobValue]


class ConfigReader(Protocol):
    """Gives the runner the engine's config in force."""

    async def config(self) -> EngineConfig:
        """The config in force."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A study: its plan, where it is measured and where it is recorded. `keep_load` runs after an Improved verdict."""

    name: str
    plan: StudyPlan
    space: Space
    sampler: SamplerSpec
    seed: int
    store: Store
    engine: ConfigReader
    meter: WindowMeter
    keep_load: Callable[[], Awaitable[None]] | None = None
    on_end: Callable[[TrialRecord | VerificationRecord], None] = lambda _: None
    on_study: Callable[[StudyRecord], None] = lambda _: None
    clock: Callable[[], float] = time.time  # noqa: TID251  (the default; tests give their own)


async def write_failure(store: Store, error: HeadraceError) -> None:
    """Leave the reason in the records, if they can still be written. A verdict already reached stands."""
    try:
        study = (await store.load()).study
        if study is None or study.verdict is None:
            failed = {"phase": RunPhase.FAILED, "message": str(error)}
            await store.save(study.model_copy(update=failed) if study else StudyRecord.model_validate(failed))
    except TunerError:
        log.warning("the reason could not be recorded", extra={"reason": str(error)})


@dataclass(slots=True)
class AttemptOutcome:
    """How an attempt at a measurement ended."""

    state: TrialState
    measured: MeasuredWindow | None = None
    reason: str = ""


@dataclass(slots=True)
class StudyRunner:
    """Runs one study to its end. Raises `TunerError` if it cannot continue; the records stay."""

    setup: Setup
    records: StudyRecords = field(default_factory=StudyRecords)

    async def run(self) -> StudyRecord:
        """Continue from the records to the end. Returns the study with its verdict."""
        await self.setup.store.acquire()
        try:
            self.records = await self.setup.store.load()
            return await self._loop()
        except TunerError as error:
            await write_failure(self.setup.store, error)
            raise
        finally:
            await self.setup.store.release()

    async def _loop(self) -> StudyRecord:
        while True:
            action = next_action(self.setup.plan, self.records, now=self.setup.clock())
            match action:
                case Prepare():
                    await self._prepare()
                case RunTrial():
                    await self._trial(action)
                case Verify():
                    await self._verify(action)
                case Conclude():
                    await self._save(conclude(self.setup.plan, self.records, action))
                case KeepLoad():
                    if self.setup.keep_load is not None:
                        await self.setup.keep_load()
                    return self._study()
                case StudyFinished():
                    return self._study()

    async def _prepare(self) -> None:
        config = await self.setup.engine.config()
        baseline = Candidate(knobs=HotKnobs.of(self.setup.space.baseline(config.hot_values())))
        study = StudyRecord(
            phase=RunPhase.BASELINE, message="measuring the baseline", total=self.setup.plan.trials, baseline=baseline
        )
        await self._save(study)

    async def _trial(self, action: RunTrial) -> None:
        setup = self.setup
        knobs = action.knobs
        if knobs is None:
            await self._say(RunPhase.SEARCHING, f"trial {action.number}")
            knobs = propose(
                setup.space, self.records.trials, sampler=setup.sampler, number=action.number, total=setup.plan.trials
            )
        # One seed for all trials: the same arrivals for each config, so that only the config differs.
        outcome = await self._attempt(knobs, seed=setup.seed, label=f"{setup.name}-t{action.number:04d}")
        record = self._record(action.number, knobs, outcome)
        await self._save(record)
        setup.on_end(record)

    async def _verify(self, action: Verify) -> None:
        setup = self.setup
        arm = "winner" if action.winner else "baseline"
        await self._say(
            RunPhase.VERIFYING,
            f"block {action.block + 1} of {setup.plan.blocks}: {arm}, on a seed that no trial has used",
        )
        seed = derive_seed(setup.seed, "verify", action.block)
        outcome = await self._attempt(action.knobs, seed=seed, label=f"{setup.name}-v{action.number:04d}")
        measured = outcome.measured
        record = VerificationRecord(
            number=action.number,
            winner=action.winner,
            knobs=HotKnobs.of(action.knobs),
            seed=seed,
            state=outcome.state,
            reason=outcome.reason,
            window=measured.window if measured else None,
            measures=measured.reading.measures() if measured else None,
            halves=[Half.of(part) for part in measured.reading.halves] if measured else [],
        )
        await self._save(record)
        setup.on_end(record)

    async def _attempt(self, knobs: Knobs, *, seed: int, label: str) -> AttemptOutcome:
        """Measure, and measure again if that was void. A config under which the engine restarts twice has failed."""
        config = await self.setup.engine.config()
        wanted = {name: knobs.get(name) for name in self.setup.space.names}
        why = refusal(config, wanted)
        if why is not None:
            return AttemptOutcome(TrialState.INFEASIBLE, reason=f"refused: {why}")
        first: TrialVoid | None = None
        while True:
            try:
                measured = await self.setup.meter.measure(wanted, seed=seed, label=label)
                return AttemptOutcome(TrialState.COMPLETE, measured)
            except KnobsRefused as error:
                return AttemptOutcome(TrialState.INFEASIBLE, reason=f"refused: {error}")
            except TrialVoid as void:
                log.warning("void: %s", void.reason, extra={"trial": label, "repeated": first is not None})
                if first is not None:
                    failed = first.kind is VoidKind.RESTARTED is void.kind
                    return AttemptOutcome(TrialState.FAILED if failed else TrialState.VOID, reason=void.reason)
                first = void

    def _record(self, number: int, knobs: Knobs, outcome: AttemptOutcome) -> TrialRecord:
        goal, measured = self.setup.plan.goal, outcome.measured
        seen = TrialRecord(
            number=number, state=outcome.state, knobs=HotKnobs.of(knobs), seed=self.setup.seed, reason=outcome.reason
        )
        if measured is None:
            constraints = {} if outcome.state is TrialState.VOID else goal.broken
            return seen.model_copy(update={"constraints": constraints})
        reading = measured.reading
        attainment = reading.counts.attainment
        missed = attainment < goal.attainment
        return seen.model_copy(
            update={
                "state": TrialState.INFEASIBLE if missed else TrialState.COMPLETE,
                "reason": f"attainment {attainment:.1%} is below {goal.attainment:.1%}" if missed else "",
                "score": goal.score(reading),
                "attainment": attainment,
                "window": measured.window,
                "measures": reading.measures(),
                "constraints": goal.constraints(reading),
            }
        )

    async def _say(self, phase: RunPhase, message: str) -> None:
        await self._save(progress(self.setup.plan, self.records, phase=phase, message=message))

    async def _save(self, record: AnyRecord) -> None:
        await self.setup.store.save(record)
        match record:
            case StudyRecord():
                self.records = replace(self.records, study=record)
                self.setup.on_study(record)
            case TrialRecord():
                self.records = replace(self.records, trials=(*self.records.trials, record))
            case VerificationRecord():
                self.records = replace(self.records, windows=(*self.records.windows, record))

    def _study(self) -> StudyRecord:
        if self.records.study is None:
            raise TunerError("the study ended without a record of itself: this is a bug")
        return self.records.study
