"""Visits of three modes, made of numbers."""

import random

from headrace_bench.modes.design import Level, Mode
from headrace_bench.modes.outcome import (
    LevelRun,
)
from headrace_bench.serve.result import ServeWindow
from headrace_bench.serve.watch import Health
from headrace_client.load.client import RequestRecord
from headrace_core.workload.plans import RequestKind

HEALTH = Health(seconds=10.0, cpu_share=0.2, loop_lag=None)


SHORT, LONG = RequestKind.SHORT, RequestKind.LONG


def record(number: int, ttft: float | None, *, at: float | None = None, kind: RequestKind = SHORT, **more: object):
    gaps = more.pop("gaps", (0.1, 0.1))
    whole = ttft is not None and "error" not in more
    base = {
        "planned_at": number / 10 if at is None else at, "sent_at": 0.0, "kind": kind, "prompt_tokens": 16,
        "output_tokens": 3, "ttft": ttft, "gaps": gaps if ttft is not None else (), "number": number, "text": "abc",
        "e2e": ttft + sum(gaps) if whole else None,
    }  # fmt: skip
    return RequestRecord(**base | more)


def run(mode: Mode, level: Level, records: list, *, repetition: int = 0, busy: float = 0.9, end: float = 20.0):
    return LevelRun(
        mode=mode, level=level, repetition=repetition, rate=None if level is Level.FULL else 5.0, records=records,
        window=ServeWindow(begin=0.0, end=end), ended=end + 5, busy=busy, health=HEALTH,
    )  # fmt: skip


def waits(scale: float, *, seed: int, spread: float = 0.0) -> list[RequestRecord]:
    """The same requests for every scale: a tenth is slow, as behind a long prompt; one of 25 is long."""
    rng, own, records = random.Random(seed), random.Random(f"{seed}{scale}"), []
    for number in range(100):
        kind = LONG if number % 25 == 7 else SHORT
        slow = 2.0 * scale * own.uniform(1 - spread, 1 + spread) if rng.random() < 0.1 else 0.0
        records.append(record(number, rng.uniform(0.1, 0.2) + slow, at=number / 5, kind=kind))
    return records


def served(mode: Mode, speed: float) -> list[RequestRecord]:
    """Twelve tokens a second in batches of four for static batching, `speed` times as many for the others."""
    if mode is Mode.STATIC:
        return [record(n, n // 4 + 0.1, at=0.0, gaps=(0.4, 0.5)) for n in range(80)]
    return [record(n, 0.0, at=n / (4 * speed), gaps=(0.01, 0.01)) for n in range(round(80 * speed))]


def visits(*, cut: float = 0.2, speed: float = 2.5, busy: float = 0.95, spread: float = 0.0) -> list[LevelRun]:
    runs = []
    for repetition in (0, 1):
        for mode, scale in ((Mode.STATIC, 3.0), (Mode.CONTINUOUS, 1.0), (Mode.CHUNKED, cut)):
            for level in (Level.LOW, Level.HIGH):
                records = waits(scale, seed=repetition, spread=spread)
                runs.append(run(mode, level, records, repetition=repetition, busy=busy))
            runs.append(run(mode, Level.FULL, served(mode, speed), repetition=repetition, busy=busy))
    return runs
