"""The whole study with an engine that is a formula: verdicts, voids, and a kill at every point."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from headrace_api.v1alpha1.record_codec import AnyRecord, StudyRecords, decode, encode, key_of
from headrace_api.v1alpha1.records import RunPhase, StudyVerdict, TimeWindow, TrialState
from headrace_api.v1alpha1.search import KnobRange
from headrace_api.v1alpha1.tuningrun import SamplerSpec
from headrace_core.evidence.counts import Counts, sum_of
from headrace_core.evidence.windows import VoidKind
from headrace_core.knobs.resolve import resolve
from headrace_tuner.errors import LeaseLost, TrialVoid, TunerError
from headrace_tuner.measure.reading import TrialReading
from headrace_tuner.measure.window import MeasuredWindow
from headrace_tuner.records.store import FolderStore, read_all
from headrace_tuner.study.runner import Setup, StudyRunner
from headrace_tuner.study.space import Space
from headrace_tuner.targets.base import KnobsRefused

SPACE = Space.of(
    [
        KnobRange(name="prefillChunkSize", min=32.0, max=256.0, log=True),
        KnobRange(name="maxNumBatchedTokens", choices=[128, 256, 512]),
    ]
)


@dataclass(slots=True)
class MemoryStore:
    """A store that is lost with the process."""

    data: dict[str, str] = field(default_factory=dict)

    async def acquire(self) -> None:
        pass

    async def load(self) -> StudyRecords:
        return read_all(self.data)

    async def save(self, record: AnyRecord) -> None:
        self.data[key_of(record)] = encode(record)

    async def release(self) -> None:
        pass


class Killed(BaseException):
    """SIGKILL: nothing may catch it."""


@dataclass
class Formula:
    """Meter and engine: the smaller the chunk, the more requests are good."""

    calls: list[tuple[dict, int, str]] = field(default_factory=list)
    faults: dict[int, Exception] = field(default_factory=dict)
    flat: bool = False

    async def config(self):
        return resolve({"max_num_batched_tokens": 512, "max_num_seqs": 32, "prefill_chunk_size": 512})

    async def measure(self, knobs, *, seed: int, label: str) -> MeasuredWindow:
        self.calls.append((dict(knobs), seed, label))
        if fault := self.faults.get(len(self.calls)):
            raise fault
        good = 20.0 if self.flat else max(5.0, 40 - knobs["prefill_chunk_size"] / 8)
        half = Counts(good=good / 2, requests=20, seconds=10, output_tokens=600)
        reading = TrialReading(
            counts=sum_of([half, half]), throughput=60, p95={"itl": 0.05}, halves=(half, half)
        )  # fmt: skip
        at = datetime.fromtimestamp(len(self.calls), UTC)
        return MeasuredWindow(TimeWindow(start=at, end=at), reading)


def setup_of(make, store, formula, **more: object) -> Setup:
    return Setup(
        **{"name": "run", "plan": make.plan(trials=6, blocks=2), "space": SPACE, "sampler": SamplerSpec(seed=3)}
        | {"seed": 11, "store": store, "engine": formula, "meter": formula, "clock": lambda: 1.0}
        | more
    )


async def test_a_bad_baseline_is_improved_on(make) -> None:
    store, formula = MemoryStore(), Formula()
    study = await StudyRunner(setup_of(make, store, formula)).run()
    assert study.verdict is StudyVerdict.IMPROVED
    assert study.phase is RunPhase.PROPOSED
    records = decode(store.data)
    assert records.trials[0].knobs.values() == {"prefill_chunk_size": 512, "max_num_batched_tokens": 512}
    assert [trial.number for trial in records.trials] == list(range(6))
    assert study.proposal.knobs == study.best.knobs
    assert study.effect.low > 1.05


async def test_trials_share_a_seed_and_verification_uses_fresh_ones(make) -> None:
    formula = Formula()
    await StudyRunner(setup_of(make, MemoryStore(), formula)).run()
    trials = [seed for _, seed, label in formula.calls if "-t" in label]
    blocks = [seed for _, seed, label in formula.calls if "-v" in label]
    assert set(trials) == {11}
    assert blocks[0] == blocks[1] != blocks[2] == blocks[3]
    assert 11 not in blocks


async def test_where_nothing_matters_nothing_wins(make) -> None:
    study = await StudyRunner(setup_of(make, MemoryStore(), Formula(flat=True))).run()
    assert study.verdict is StudyVerdict.NO_FEASIBLE_CONFIG
    assert study.proposal is None


async def test_a_contradiction_is_data_and_costs_no_window(make) -> None:
    store, formula = MemoryStore(), Formula()
    await StudyRunner(setup_of(make, store, formula, plan=make.plan(trials=30, blocks=2))).run()
    refused = [trial for trial in decode(store.data).trials if trial.reason.startswith("refused")]
    assert refused
    assert all(trial.state is TrialState.INFEASIBLE and trial.score is None for trial in refused)
    assert all(trial.constraints["runnable"] > 0 for trial in refused)
    assert len(formula.calls) == 30 - len(refused) + 4


async def test_a_refusal_by_the_engine_itself_is_data_too(make) -> None:
    store, formula = MemoryStore(), Formula(faults={2: KnobsRefused("prefill_chunk_size: no")})
    await StudyRunner(setup_of(make, store, formula)).run()
    assert decode(store.data).trials[1].reason == "refused: prefill_chunk_size: no"


async def test_a_void_window_is_repeated_once(make) -> None:
    store, formula = MemoryStore(), Formula(faults={2: TrialVoid(VoidKind.UNSCRAPED, "a scrape is missing")})
    await StudyRunner(setup_of(make, store, formula)).run()
    assert formula.calls[1][0] == formula.calls[2][0]
    assert decode(store.data).trials[1].state is not TrialState.VOID


@pytest.mark.parametrize(
    ("kind", "state"),
    [(kind, TrialState.FAILED if kind is VoidKind.RESTARTED else TrialState.VOID) for kind in VoidKind],
)
async def test_twice_void_is_void_unless_the_engine_fell_over_both_times(make, kind, state) -> None:
    faults = {2: TrialVoid(VoidKind.RESTARTED, "first"), 3: TrialVoid(kind, "second")}
    store = MemoryStore()
    await StudyRunner(setup_of(make, store, Formula(faults=faults))).run()
    trial = decode(store.data).trials[1]
    assert (trial.state, trial.reason) == (state, "second")
    assert bool(trial.constraints) is (state is TrialState.FAILED)


async def test_the_error_that_stops_the_study_is_recorded(make) -> None:
    store = MemoryStore()
    with pytest.raises(TunerError, match="gone"):
        await StudyRunner(setup_of(make, store, Formula(faults={3: TunerError("the engine is gone")}))).run()
    study = decode(store.data).study
    assert study.phase is RunPhase.FAILED
    assert study.message == "the engine is gone"
    assert study.baseline is not None


async def test_the_load_is_kept_only_after_an_improvement_that_will_be_applied(make) -> None:
    kept = []

    async def keep() -> None:
        kept.append(True)

    for plan, flat, wanted in (
        (make.plan(blocks=2, keep_load=True), False, [True]),
        (make.plan(blocks=2, keep_load=True), True, []),
        (make.plan(blocks=2, keep_load=False), False, []),
    ):
        kept.clear()
        await StudyRunner(setup_of(make, MemoryStore(), Formula(flat=flat), plan=plan, keep_load=keep)).run()
        assert kept == wanted


@dataclass
class DyingStore(MemoryStore):
    """Kills the tuner at its nth write, before or after the write is durable."""

    left: int = 0
    after: bool = False

    async def save(self, record) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        await MemoryStore.save(self, record)
        if self.left == 0:
            raise Killed


async def ended(make, formula) -> dict[str, str]:
    store = MemoryStore()
    await StudyRunner(setup_of(make, store, formula)).run()
    return store.data


@pytest.mark.parametrize("after", [True, False])
async def test_a_kill_at_any_write_repeats_at_most_one_window(make, after: bool) -> None:
    whole = Formula()
    expected = await ended(make, whole)
    for write in range(1, 40):
        formula, store = Formula(), DyingStore(left=write, after=after)
        try:
            await StudyRunner(setup_of(make, store, formula)).run()
        except Killed:
            await StudyRunner(setup_of(make, MemoryStore(store.data), formula)).run()
        else:
            assert write > 10, "the study ended before the kill"
            break
        without_times = [{key: _timeless(text) for key, text in data.items()} for data in (store.data, expected)]
        assert without_times[0] == without_times[1], f"killed at write {write}"
        assert len(whole.calls) <= len(formula.calls) <= len(whole.calls) + 1


async def test_a_kill_inside_any_window_repeats_that_window_alone(make) -> None:
    whole = Formula()
    await ended(make, whole)
    for call in range(1, len(whole.calls) + 1):
        formula, data = Formula(faults={call: Killed()}), {}
        with pytest.raises(Killed):
            await StudyRunner(setup_of(make, MemoryStore(data), formula)).run()
        study = await StudyRunner(setup_of(make, MemoryStore(data), formula)).run()
        assert study.verdict is StudyVerdict.IMPROVED
        assert len(formula.calls) == len(whole.calls) + 1
        assert formula.calls[call - 1][:2] == formula.calls[call][:2]


def _timeless(text: str) -> str:
    import json

    body = json.loads(text)
    body.pop("window", None)
    return json.dumps(body, sort_keys=True)


PROCESS = """
import asyncio, sys
from pathlib import Path
from headrace_api.v1alpha1.tuningrun import Objective, SamplerSpec
from headrace_tuner.ladder.objective import StudyGoal
from headrace_tuner.study.phases import StudyPlan
from headrace_tuner.study.runner import Setup, StudyRunner
from headrace_tuner.records.store import FolderStore
import importlib.util
spec = importlib.util.spec_from_file_location("formula", sys.argv[1])
module = importlib.util.module_from_spec(spec); sys.modules["formula"] = module; spec.loader.exec_module(module)

class Slow(module.Formula):
    async def measure(self, knobs, *, seed, label):
        print(label, flush=True)
        await asyncio.sleep(0.05)
        return await super().measure(knobs, seed=seed, label=label)

formula = Slow()
goal = StudyGoal(objective=Objective.GOODPUT, attainment=0.9, thresholds={"itl": 0.1})
plan = StudyPlan(goal=goal, trials=6, duration=None, blocks=2, min_effect=0.05, confidence=0.95, keep_load=False)
setup = Setup(name="run", plan=plan, space=module.SPACE, sampler=SamplerSpec(seed=3), seed=11,
              store=FolderStore(Path(sys.argv[2])), engine=formula, meter=formula)
print(asyncio.run(StudyRunner(setup).run()).verdict.value, flush=True)
"""


def test_a_real_process_killed_by_the_kernel_goes_on(tmp_path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), __file__, str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen = [first.stdout.readline().split("-")[1].strip() for _ in range(4)]
    os.kill(first.pid, signal.SIGKILL)
    seen += [line.split("-")[1].strip() for line in first.stdout.read().splitlines()]
    first.wait()
    first.stdout.close()
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    *again, verdict = second.stdout.split()
    seen += [label.split("-")[1] for label in again]
    assert verdict == "Improved"
    assert len(seen) <= len(set(seen)) + 1, f"more than one window was repeated: {seen}"
    assert len(set(seen)) == 10
    assert not list(tmp_path.glob("*.tmp"))


async def test_two_tuners_do_not_write_to_one_folder(make, tmp_path) -> None:
    holder = FolderStore(tmp_path)
    await holder.acquire()
    with pytest.raises(LeaseLost, match="another tuner is writing there"):
        await StudyRunner(setup_of(make, FolderStore(tmp_path), Formula())).run()
    await holder.release()
    await StudyRunner(setup_of(make, FolderStore(tmp_path), Formula())).run()
    await asyncio.sleep(0)
