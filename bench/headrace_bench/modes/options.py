"""The flags of `headrace bench modes`, checked as a whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from headrace_bench.command_options import duration, option
from headrace_bench.errors import BenchError
from headrace_bench.host_info import cores
from headrace_core.workload.lengths import FORMS, Length

RUN, LOAD, ENGINE, OUT = "Run", "Load", "Engine", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesOptions:
    """The options of `headrace bench modes`. Durations in seconds."""

    budget: Annotated[float, duration("Time for the whole comparison; windows are sized to fit.", panel=RUN)] = 540.0
    repetitions: Annotated[int, option("Visits to each mode, in alternating order.", panel=RUN, min=1)] = 2
    quick: Annotated[bool, option("One visit to each mode with the shortest windows: for a test.", panel=RUN)] = False
    seed: Annotated[int, option("Seed of arrivals, lengths and prompts.", panel=RUN)] = 0

    prompt_tokens: Annotated[str, option(f"Short prompts: {FORMS}.", panel=LOAD)] = "16"
    long_prompt_tokens: Annotated[str | None, option("Long prompts. Default: 16 chunks.", panel=LOAD)] = None
    long_share: Annotated[float, option("Share of long prompts, 0 to 1.", panel=LOAD)] = 0.04
    output_tokens: Annotated[str, option("Answers; their spread is what static batching waits for.", panel=LOAD)] = (
        "lognormal:24:1.2:128"
    )
    low_rate: Annotated[float | None, option("Requests a second. Default: from step times.", panel=LOAD)] = None
    high_rate: Annotated[float | None, option("Requests a second. Default: from step times.", panel=LOAD)] = None

    max_num_seqs: Annotated[int, option("Sequences that run at once, in every mode.", panel=ENGINE, min=1)] = 16
    budget_tokens: Annotated[
        int | None, option("Token budget of a step, in every mode. Default: 256, or 4 chunks.", panel=ENGINE, min=1)
    ] = None
    chunk: Annotated[
        int | None, option("Tokens in a prefill chunk. Default: from step times.", panel=ENGINE, min=1)
    ] = None
    threads: Annotated[
        int | None, option("CPU threads of the engine. Default: all cores but one.", panel=ENGINE, min=1)
    ] = None
    device: Annotated[str, option("auto, cpu or cuda.", panel=ENGINE)] = "auto"
    calibration: Annotated[
        Path | None, option("Step times from bench engine --json. Default: measured first.", panel=ENGINE)
    ] = None

    out: Annotated[Path, option("Folder for modes.json, modes.png and the engine's logs.", panel=OUT)] = Path(
        "build/bench"
    )
    json: Annotated[str | None, option("Also write the result to this file; - for stdout.", panel=OUT)] = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form of the options."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @property
    def engine_threads(self) -> int:
        """CPU threads of the engine: one core is left for the load client, which shares the machine with it."""
        return self.threads or max(1, cores() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLengths:
    """Lengths of the load, parsed."""

    short: Length
    long: Length | None
    output: Length


def parse_lengths(options: ModesOptions) -> LoadLengths:
    """Check the options. Raises `BenchError` that names the flag."""
    if not options.budget > 0:
        raise BenchError(f"--budget: must be above 0, got {options.budget:g}")
    if not 0 <= options.long_share < 1:
        raise BenchError(f"--long-share: must be from 0 to below 1, got {options.long_share:g}")
    for name in ("low_rate", "high_rate"):
        rate = getattr(options, name)
        if rate is not None and not 0 < rate < 1e6:
            raise BenchError(f"--{name.replace('_', '-')}: must be above 0, got {rate:g}")
    parsed = {}
    for name in ("prompt_tokens", "long_prompt_tokens", "output_tokens"):
        text = getattr(options, name)
        try:
            parsed[name] = None if text is None else Length.parse(text)
        except ValueError as error:
            raise BenchError(f"--{name.replace('_', '-')}: {error}") from error
    short, output = parsed["prompt_tokens"], parsed["output_tokens"]
    if short is None or output is None:
        raise BenchError("--prompt-tokens and --output-tokens cannot be empty")
    return LoadLengths(short=short, long=parsed["long_prompt_tokens"], output=output)
