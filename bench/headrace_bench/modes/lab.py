"""Runs engines one after another, each in one mode. The first one calibrates the design for the others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from headrace_bench.modes.design import Design, Level, LoadRates, Mode, Windows
from headrace_bench.modes.options import ModesOptions
from headrace_bench.modes.outcome import LevelRun
from headrace_bench.modes.server import running_engine
from headrace_bench.modes.visit import Ready, Visit, full_level, make_ready, open_level, warm_up
from headrace_bench.serve.prompts import Dialect
from headrace_client.load.client import LoadClient


class LabStage(Protocol):
    """Shows progress."""

    def begin(self, about: str, *, seconds: float) -> None:
        """A part begins that takes about `seconds`."""
        ...

    def load(self, about: str, client: LoadClient) -> None:
        """A load begins inside the part."""
        ...

    def say(self, text: str) -> None:
        """Print a line that stays."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSetting:
    """What every visit has in common."""

    design: Design
    rates: LoadRates
    windows: Windows


@dataclass(frozen=True, slots=True)
class Place:
    """A visit's place among all."""

    number: int
    visits: int
    repetition: int
    mode: Mode


@dataclass(slots=True, kw_only=True)
class Lab:
    """One machine, one model. The last three are known after the first engine; `start_seconds`: until it is warm."""

    options: ModesOptions
    stage: LabStage
    session: aiohttp.ClientSession
    model: str
    dialect: Dialect | None = None
    start_seconds: float = 0.0
    engine: Mapping[str, Any] = field(default_factory=dict)

    async def learn(self, design: Callable[[int | None], Design], *, seconds: float) -> tuple[Design, float]:
        """Start an engine once, to learn its tokenizer and how long a start takes, and load it fully for `seconds`.

        `design` makes the design from the longest request that the engine takes. Returns it, and output tokens a
        second with chunks.
        """
        self.stage.begin("the first engine, to check the prediction", seconds=15 + seconds)
        begun, visit = time.monotonic(), self._visitor(Mode.CHUNKED, -1)
        async with self._ready(design(None), visit.mode, "first") as ready:
            self.dialect, self.engine = ready.dialect, ready.facts
            fitting = design(ready.endpoint.max_model_len)
            await warm_up(ready, fitting, visit)
            self.start_seconds = time.monotonic() - begun
            run = await full_level(ready, fitting, visit, seconds=seconds)
        return fitting, sum(record.output_tokens for record in run.records) / run.ended

    async def visit(self, place: Place, setting: LabSetting) -> AsyncIterator[LevelRun]:
        """A fresh engine in one mode, loaded at each level."""
        design, windows, mode = setting.design, setting.windows, place.mode
        full = windows.full_of(mode)
        seconds = self.start_seconds + windows.low + windows.high + 2 * (windows.warmup + windows.drain) + full
        self.stage.begin(f"visit {place.number + 1} of {place.visits}: {mode}", seconds=seconds)
        visit = self._visitor(mode, place.repetition)
        async with self._ready(design, mode, f"{place.number + 1}") as ready:
            await warm_up(ready, design, visit)
            for level in (Level.LOW, Level.HIGH):
                yield self._told(
                    await open_level(ready, design, visit, level=level, rates=setting.rates, windows=windows)
                )
            yield self._told(await full_level(ready, design, visit, seconds=full))

    def _visitor(self, mode: Mode, repetition: int) -> Visit:
        return Visit(mode=mode, repetition=repetition, seed=self.options.seed, show=self.stage.load)

    @asynccontextmanager
    async def _ready(self, design: Design, mode: Mode, name: str) -> AsyncIterator[Ready]:
        options = self.options
        flags = [*design.flags(mode), "--threads", str(options.engine_threads), "--device", options.device]
        log = options.out / "logs" / f"{name}-{mode}.log"
        async with running_engine(self.model, flags, session=self.session, log=log) as engine:
            yield await make_ready(engine, design.knobs(mode), dialect=self.dialect)

    def _told(self, run: LevelRun) -> LevelRun:
        answered = sum(record.error is None for record in run.inside)
        self.stage.say(f"{run.level}: {answered} of {len(run.inside)} answered, busy {run.busy:.0%}")
        return run
