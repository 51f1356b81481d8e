"""The whole result, for a terminal and for programs."""

import io
import json

from modes_doubles import record, run, visits
from rich.console import Console

from headrace_bench.modes.command import Judged, bench_modes_result
from headrace_bench.modes.design import Level, LoadRates, Mode, Windows, make_design
from headrace_bench.modes.lab import LabSetting
from headrace_bench.modes.options import ModesOptions, parse_lengths
from headrace_bench.modes.outcome import (
    LevelRun,
)
from headrace_bench.modes.run import Compared
from headrace_client.load.client import ErrorKind
from headrace_core.sim.calibration import Calibration


def judged(runs: list[LevelRun]) -> Judged:
    options = ModesOptions()
    lengths = parse_lengths(options)
    design = make_design(
        chunk=64, max_num_seqs=4, budget=None, short=lengths.short, output=lengths.output, long=None, long_share=0.04
    )
    capacity = dict.fromkeys(Mode, 1.0)
    setting = LabSetting(
        design=design, rates=LoadRates(low=1.0, high=5.0, capacity=capacity, separates=True),
        windows=Windows(low=1, high=1, warmup=1, drain=1, full=1, full_static=1),
    )  # fmt: skip
    facts = {"model": "SmolLM2-135M-Instruct", "device": "cpu", "dtype": "float32"}
    calibration = Calibration(decode={1: 0.1}, prefill={32: 0.2}, facts=facts)
    return Judged.of(
        Compared(
            options=options, model="m", calibration=calibration, setting=setting, factor=1.0, runs=runs,
            environment={"cpu": "AMD EPYC", "cores": 2, "load_average": 0.1, "load_average_after": 1.2}, seconds=1.0,
        )
    )  # fmt: skip


def test_everything_fits_80_columns_and_is_json() -> None:
    runs = visits()
    over = [record(n, None, at=n / 5, error=ErrorKind.UNFINISHED) if n > 20 else record(n, 33.3) for n in range(99)]
    runs[1] = run(Mode.STATIC, Level.HIGH, over)
    whole = judged(runs)
    json.dumps(whole.to_json(), allow_nan=False)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bench_modes_result(whole))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    rows = [line for line in lines if "static" in line and "33.3" in line]
    assert rows, text
    assert ">" in rows[0]
    assert "AMD EPYC, 2 cores; load average 0.1 before, 1.2 after" in text
    for words in ("Claim: chunking cuts TTFT tails", "held", "not held", "What else chunking does", "greedy answers"):
        assert words in text
