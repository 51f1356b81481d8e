"""The whole comparison: calibrate, derive the load, visit each mode in alternating order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace_bench.engine_command import engine_command
from headrace_bench.errors import BenchError
from headrace_bench.host_info import describe_machine, load_average
from headrace_bench.modes.design import (
    Design,
    LoadRates,
    Mode,
    Windows,
    choose_chunk,
    choose_rates,
    make_design,
    order,
    share_out,
)
from headrace_bench.modes.lab import Lab, LabSetting, LabStage, Place
from headrace_bench.modes.options import LoadLengths, ModesOptions, parse_lengths
from headrace_bench.modes.outcome import LevelRun
from headrace_bench.modes.predict import batch_seconds, predict
from headrace_client.load.client import load_session
from headrace_core.sim.calibration import Calibration

BUSY_MACHINE = 0.75  # load average per core before we begin
FEW = 50  # requests at the high load
CHECK_SHARE = 0.03  # of the budget, to check the prediction against the engine
SLOWEST, FASTEST = 0.3, 3.0  # measured over predicted; outside, the prediction is useless


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All measurements, with the conditions. `factor`: the engine's speed over the predicted one."""

    options: ModesOptions
    model: str
    calibration: Calibration
    setting: LabSetting
    factor: float
    runs: Sequence[LevelRun]
    environment: dict[str, Any]
    seconds: float


async def compare_modes(options: ModesOptions, model: str | None, stage: LabStage) -> Compared:
    """Run the whole comparison. Raises `BenchError`."""
    started, lengths = time.monotonic(), parse_lengths(options)
    environment = describe_machine()
    _say_if_busy(environment, stage)
    options.out.mkdir(parents=True, exist_ok=True)
    folder = model or await _demo_model(stage)
    calibration = await _calibrate(options, folder, stage)
    async with load_session() as session:
        lab = Lab(options=options, stage=stage, session=session, model=folder)
        seconds = 1.0 if options.quick else max(3.0, CHECK_SHARE * options.budget)
        design, measured = await lab.learn(partial(_design, options, lengths, calibration), seconds=seconds)
        factor = _speed(design, calibration, stage, seconds=seconds, measured=measured)
        rates = _rates(options, design, calibration, factor, stage)
        visits = order(1 if options.quick else options.repetitions)
        left = 0.0 if options.quick else options.budget - (time.monotonic() - started)
        batch = batch_seconds(design, calibration) / factor
        windows = share_out(left, visits=len(visits), start=lab.start_seconds, batch=batch)
        _say_if_few(rates, windows, options.repetitions, stage)
        setting, runs = LabSetting(design=design, rates=rates, windows=windows), list[LevelRun]()
        for number, (repetition, mode) in enumerate(visits):
            place = Place(number, len(visits), repetition, mode)
            runs += [run async for run in lab.visit(place, setting)]
    environment |= {"engine": dict(lab.engine), "load_average_after": load_average()}
    return Compared(
        options=options,
        model=folder,
        calibration=calibration,
        setting=setting,
        factor=factor,
        runs=runs,
        environment=environment,
        seconds=time.monotonic() - started,
    )


def out_file(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Write a file in the output folder under another name, then rename it: a reader never sees half of it."""
    path = folder / name
    part = path.with_name(f".part-{name}")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        raise BenchError(f"{path}: cannot be written: {error.strerror}") from error
    return path


async def _demo_model(stage: LabStage) -> str:
    stage.begin("the demo model", seconds=5)
    return (await engine_command("model", "demo")).strip().splitlines()[-1]


async def _calibrate(options: ModesOptions, model: str, stage: LabStage) -> Calibration:
    path = options.calibration
    if path is None:
        stage.begin("step times", seconds=40)
        words = ["--threads", str(options.engine_threads), "--device", options.device, "--json"]
        text, name = await engine_command("bench", model, *words), "headrace bench engine"
    else:
        try:
            text, name = path.read_text(), f"--calibration {path}"
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(f"--calibration {path}: cannot be read: {error}") from error
    try:
        return Calibration.from_json(json.loads(text))
    except ValueError as error:
        raise BenchError(f"{name}: is not JSON: {error}") from error


def _design(
    options: ModesOptions, lengths: LoadLengths, calibration: Calibration, max_model_len: int | None
) -> Design:  # fmt: skip
    return make_design(
        chunk=options.chunk or choose_chunk(calibration),
        max_num_seqs=options.max_num_seqs,
        budget=options.budget_tokens,
        short=lengths.short,
        output=lengths.output,
        long=lengths.long,
        long_share=options.long_share,
        max_model_len=max_model_len,
    )


def _speed(design: Design, calibration: Calibration, stage: LabStage, *, seconds: float, measured: float) -> float:
    """The engine's measured speed over the predicted one: HTTP and the load client take their share."""
    simulated = predict(design, calibration, Mode.CHUNKED, duration=seconds)
    predicted = simulated.tokens / simulated.seconds
    stage.say(f"step times predict {predicted:.1f} tokens/s at first, the engine gives {measured:.1f}")
    return min(FASTEST, max(SLOWEST, measured / predicted)) if predicted > 0 else 1.0


def _say_if_busy(environment: Mapping[str, Any], stage: LabStage) -> None:
    load, cores = environment["load_average"], environment["cores"]
    if load is not None and load > BUSY_MACHINE * cores:
        stage.say(
            f"[yellow]this machine is busy[/]: {load:.1f} processes want its {cores} cores; figures will be unreliable"
        )


def _say_if_few(rates: LoadRates, windows: Windows, repetitions: int, stage: LabStage) -> None:
    expected = rates.high * windows.high * repetitions
    if expected < FEW:
        stage.say(
            f"[yellow]only about {expected:.0f} requests fit into the windows of the high load[/]: too few for tails; "
            "raise --budget"
        )


def _rates(
    options: ModesOptions, design: Design, calibration: Calibration, factor: float, stage: LabStage
) -> LoadRates:
    capacity = {mode: factor * predict(design, calibration, mode).requests_per_second for mode in Mode}
    chosen = choose_rates(capacity)
    low, high = options.low_rate or chosen.low, options.high_rate or chosen.high
    able = ", ".join(f"{mode} {rate:.2f}" for mode, rate in capacity.items())
    stage.say(f"predicted capacity, requests/s: {able}; loads: low {low:.2f}, high {high:.2f}")
    if not chosen.separates:
        stage.say("no load overloads static batching alone here: it carries nearly what the others do")
    return replace(chosen, low=low, high=high)
