"""`headrace bench engine`: times single steps, with the same runner as the server."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.events import ScheduledSeq
from headrace_core.sim.calibration import TABLES
from headrace_engine import device as devices
from headrace_engine.attention.kv_cache import make_pool
from headrace_engine.engine import load, pick_attention
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.model.weights import find_source

CONTEXT = 128  # tokens before the one that each sequence decodes
DECODES = (1, 2, 4, 8, 16)
PREFILLS = (32, 64, 128, 256, 512)
SECONDS_PER_CASE = 0.6
MAX_RUNS = 9


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step."""

    kind: str  # decode or prefill
    size: int  # sequences or tokens


def calibrate(
    model: str, config: EngineConfig, *, device: torch.device, report: Callable[[Case, float], None]
) -> dict[str, Any]:
    """Load `model` and time steps: the median of a few runs of each case after a warm-up run. Raises `ModelError`."""
    source = find_source(model)
    loaded, layers = load(source, config, device=device)
    decodes = [Case("decode", size) for size in DECODES]
    prefills = [Case("prefill", size) for size in PREFILLS if size <= loaded.max_position]
    blocks = max(DECODES[-1] * (CONTEXT // config.block_size + 1), PREFILLS[-1] // config.block_size + 1) + 1
    stored = devices.pick_kv_dtype(config.kv_cache_dtype, loaded.dtype)
    pool = make_pool(layers, num_blocks=blocks, block_size=config.block_size, device=loaded.device, dtype=stored)
    runner = ModelRunner(loaded, pool, pick_attention(loaded, layers, config))
    seconds: dict[str, dict[str, float]] = {kind: {} for kind in TABLES}
    for case in (*decodes, *prefills):
        took = _time(runner, _step(case, config.block_size, vocabulary=loaded.vocab_size))
        seconds[case.kind][str(case.size)] = took
        report(case, took)
    return {
        "model": source.name,
        "device": loaded.device.type,
        "device_name": devices.device_name(loaded.device),
        "pretend_gpu": devices.pretends_gpu(),
        "dtype": devices.dtype_name(loaded.dtype),
        "cpu_features": list(devices.cpu_features()),
        "attention_backend": runner.backend.name,
        "threads": torch.get_num_threads(),
        "parameters": loaded.num_parameters,
        "context": CONTEXT,
        **{key: seconds[kind] for kind, key in TABLES.items()},
    }


def _step(case: Case, block_size: int, *, vocabulary: int) -> list[ScheduledSeq]:
    tokens = tuple(at % vocabulary for at in range(5, 5 + case.size))
    if case.kind == "prefill":
        table = tuple(range(1, 2 + case.size // block_size))
        return [_seq("p", 0, tokens, table, is_prefill=True)]
    width = CONTEXT // block_size + 1
    tables = [tuple(range(1 + at * width, 1 + (at + 1) * width)) for at in range(case.size)]
    return [_seq(str(at), CONTEXT, tokens[:1], table, is_prefill=False) for at, table in enumerate(tables)]


def _seq(
    name: str, start: int, tokens: tuple[int, ...], table: tuple[int, ...], *, is_prefill: bool
) -> ScheduledSeq:  # fmt: skip
    return ScheduledSeq(
        request_id=name, start=start, token_ids=tokens, block_table=table, samples=True,
        is_prefill=is_prefill,
    )  # fmt: skip


def _time(runner: ModelRunner, step: Sequence[ScheduledSeq]) -> float:
    runs: list[float] = []
    _run(runner, step)
    while not runs or (sum(runs) < SECONDS_PER_CASE and len(runs) < MAX_RUNS):
        started = time.perf_counter()
        _run(runner, step)
        runs.append(time.perf_counter() - started)
    return statistics.median(runs)


def _run(runner: ModelRunner, step: Sequence[ScheduledSeq]) -> None:
    runner.logits(step).argmax(-1).tolist()  # reading the tokens waits for the device
