"""The design of the comparison: flags of each mode, lengths, rates, order and windows. Pure.

It depends on the machine: its step times set the chunk, and with the engine's own scheduler they predict what each mode
can carry. The rates lie where the modes differ (`high`: more than static batching carries, less than continuous
batching does), where they should not (`low`), and above what any mode carries (`full`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace_bench.errors import BenchError
from headrace_core.knobs.resolve import EngineConfig, resolve
from headrace_core.sim.calibration import Calibration
from headrace_core.workload.lengths import Length
from headrace_core.workload.plans import RequestMix

CHUNK_COST = 1.35  # a chunk's cost per token may be this multiple of the cheapest
SMALLEST_CHUNK = 32
LONG_CHUNKS = 16  # chunks in a long prompt
FITS = 0.9  # margin for made-up text, whose token count is only approximate
LOW_OF_STATIC, LOW_OF_CHUNKED = 0.5, 0.3
HIGH_OF_CHUNKED, HIGHEST, ABOVE_STATIC = 0.75, 0.9, 1.15
BATCHES = 2.1  # whole batches over which static batching's throughput is measured


class Mode(StrEnum):
    """How the engine forms its steps."""

    STATIC = "static"
    CONTINUOUS = "continuous"
    CHUNKED = "chunked"


class Level(StrEnum):
    """The levels of load."""

    LOW = "low"
    HIGH = "high"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The engine's settings that all modes share, and the load's shape."""

    shape: RequestMix
    max_num_seqs: int
    budget: int
    chunk: int

    def knobs(self, mode: Mode) -> dict[str, Any]:
        """The knobs of a mode. Prefix caching is off: no mode may find an earlier one's prompts."""
        shared = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.budget,
            "enable_prefix_caching": False,
            "max_queue_len": 1_000_000,
        }
        if mode is Mode.CHUNKED:
            # Only one long prompt is in prefill at a time, so that a step never holds more than one chunk of one.
            own = {"prefill_chunk_size": self.chunk, "long_prefill_token_threshold": 2 * self.chunk}
            return shared | {"batching": "continuous", "enable_chunked_prefill": True} | own
        batching = "static" if mode is Mode.STATIC else "continuous"
        return shared | {"batching": batching, "enable_chunked_prefill": False}

    def flags(self, mode: Mode) -> list[str]:
        """The knobs as `headrace serve` takes them."""
        words: list[str] = []
        for name, value in self.knobs(mode).items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return words

    def config(self, mode: Mode) -> EngineConfig:
        """The full config that the engine resolves them to."""
        return resolve(self.knobs(mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRates:
    """Requests a second at each level, and what they were derived from. `separates`: `high` overloads static only."""

    low: float
    high: float
    capacity: Mapping[Mode, float]
    separates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Seconds of each part of a visit. `full_static`: static batching needs whole batches."""

    low: float
    high: float
    warmup: float
    drain: float
    full: float
    full_static: float

    def full_of(self, mode: Mode) -> float:
        """How long `mode` is loaded fully."""
        return self.full_static if mode is Mode.STATIC else self.full


def choose_chunk(calibration: Calibration) -> int:
    """The smallest chunk whose cost per token is at most `CHUNK_COST` times the best."""
    costs = {tokens: seconds / tokens for tokens, seconds in calibration.prefill.items() if tokens >= SMALLEST_CHUNK}
    if not costs:
        return max(calibration.prefill)
    best = min(costs.values())
    return min(tokens for tokens, cost in costs.items() if cost <= CHUNK_COST * best)


def make_design(
    *, chunk: int, max_num_seqs: int, budget: int | None, short: Length, output: Length, long: Length | None,
    long_share: float, max_model_len: int | None = None,
) -> Design:  # fmt: skip
    """The design. A long prompt has `LONG_CHUNKS` chunks, fewer if the model holds less. Raises `BenchError`."""
    room = LONG_CHUNKS * chunk
    if max_model_len is not None:
        room = min(room, int((max_model_len - output.high) * FITS))
    if long is None:
        if room < 2 * short.high:
            raise BenchError(
                f"the model holds {max_model_len} tokens: with answers of up to {output.high} no long prompt fits; "
                "lower --output-tokens or --chunk"
            )
        long = Length(room, room, float(room))
    shape = RequestMix(prompt=short, output=output, long=long, long_share=long_share)
    if max_model_len is not None and shape.longest > max_model_len:
        raise BenchError(f"a request can have {shape.longest} tokens; the model holds {max_model_len}")
    return Design(
        shape=shape, max_num_seqs=max_num_seqs, budget=budget or max(256, max_num_seqs, 4 * chunk), chunk=chunk
    )


def choose_rates(capacity: Mapping[Mode, float]) -> LoadRates:
    """Rates from what the modes carry, requests a second."""
    static, chunked = capacity[Mode.STATIC], capacity[Mode.CHUNKED]
    high = max(HIGH_OF_CHUNKED * chunked, min(ABOVE_STATIC * static, HIGHEST * chunked))
    low = min(LOW_OF_STATIC * static, LOW_OF_CHUNKED * chunked)
    return LoadRates(low=low, high=high, capacity=dict(capacity), separates=high >= ABOVE_STATIC * static)


def order(repetitions: int) -> list[tuple[int, Mode]]:
    """Repetition and mode of each visit: A-B-C, then C-B-A, so that drift of the machine favours no mode."""
    modes = list(Mode)
    return [(turn, mode) for turn in range(repetitions) for mode in (modes if turn % 2 == 0 else modes[::-1])]


def share_out(seconds: float, *, visits: int, start: float, batch: float) -> Windows:
    """Windows that fill `seconds` with that many visits; `start`: seconds until a server is warm.

    `batch`: seconds that a static batch takes. Windows have a least length, so a small budget is exceeded.
    """
    each = max(0.0, seconds / max(1, visits) - start)
    full = max(2.0, 0.18 * each)
    return Windows(  # warm-up and drain come twice
        low=max(2.0, 0.18 * each),
        high=max(3.0, 0.32 * each),
        warmup=max(0.5, 0.05 * each),
        drain=max(2.0, 0.08 * each),
        full=full,
        full_static=max(full, min(BATCHES * batch, 2.5 * full)),
    )
