"""The demo's load and SLO for this machine: rates, lengths and thresholds from a calibration of the engine.

Pure. Machines differ by a factor of eight, so a fixed load idles one and drowns another. The story must be the same on
each: a prefill chunk as long as the longest prompt stalls every running decode for `whole` seconds, a small chunk for
`sliced` seconds, and the inter-token SLO lies between the two, about a factor of two from both: other work can make
the machine faster or slower between the calibration and the check. Half of the prompts are long, so most requests
meet a long one: with fewer, too many requests do well under the bad config, and a few short windows cannot tell the
two configs apart (tests/unit/headrace_local/demo/test_predict.py simulates this).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_core.sim.calibration import Calibration

SHORT_PROMPT, LONG_PROMPT, LONG_SHARE, OUTPUT_TOKENS = 24, 640, 0.5, 44
SHORTEST_LONG = 480  # lengths spread by a quarter around their mean
SLICE, DECODES = 64, 4  # the chunk that the search should find, and how many decodes run beside it
BATCH = 8  # sequences that share a decode step when the engine is busy
MIN_REQUESTS = 12  # in each window of the check on the running pods
UTILIZATION = 0.55  # by prefill in slices, and by decode at that batch: together the engine is busy and keeps up
BAD_CHUNK = 1024  # longer than any prompt of the load: each is prefilled in one step
BAD_KNOBS: Mapping[str, object] = {
    "max_num_batched_tokens": BAD_CHUNK, "prefill_chunk_size": BAD_CHUNK, "max_num_seqs": 32
}  # fmt: skip
GOOD_KNOBS: Mapping[str, object] = {  # what the search should find
    "max_num_batched_tokens": 2 * SLICE, "prefill_chunk_size": SLICE, "max_num_seqs": 16, "decode_ratio": 0.25
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The numbers in the demo's resources. Times in seconds, `rate` in requests a second."""

    ttft: float
    itl: float
    threads: int
    attainment: float
    rate: float
    window: int
    warmup: int
    mixed_load: int
    trials: int
    blocks: int
    whole: float
    sliced: float


def engine_threads(cores: int) -> int:
    """CPU threads of an engine: one core is left for the control plane, the load and Prometheus.

    If they share the engine's cores, each step waits for whichever thread was preempted, and the latencies of
    the machine drown those of the config.
    """
    return max(1, cores - 1)


def tell(calibration: Calibration) -> Story:
    """Thresholds and load for this machine."""
    beside = calibration.decode_step(DECODES)
    sliced = calibration.prefill_step(SLICE) + beside
    whole = calibration.prefill_step(SHORTEST_LONG)
    long_sliced = calibration.prompt_seconds(LONG_PROMPT, SLICE)
    prefill = LONG_SHARE * long_sliced + (1 - LONG_SHARE) * calibration.prefill_step(SHORT_PROMPT)
    decode = OUTPUT_TOKENS * calibration.decode_step(BATCH) / BATCH
    rate = UTILIZATION / max(prefill, decode)
    return Story(
        ttft=round_up(6 * long_sliced + 4 * whole),
        itl=round_up(math.sqrt(sliced * whole)),
        threads=int(calibration.facts["threads"]),
        attainment=0.9,
        rate=float(f"{rate:.2g}"),
        window=window_seconds(rate),
        warmup=3,
        mixed_load=60,
        trials=4,
        blocks=3,
        whole=whole,
        sliced=sliced,
    )


def window_seconds(rate: float) -> int:
    """A window of about 14 requests, 10 to 19 seconds."""
    return round(min(19.0, max(10.0, 14 / rate)))


def round_up(seconds: float) -> float:
    """To two significant digits, upwards, so that the manifest reads well."""
    scale = 10.0 ** (1 - math.floor(math.log10(seconds)))
    return math.ceil(seconds * scale) / scale
