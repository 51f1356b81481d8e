"""The peak rates of this device, from a large matrix product and a streaming read, timed once per process.

The best of several short runs counts: other load only makes runs longer, so the fastest run is closest to what the
device can do. These peaks are attainable ones, below the vendor's figures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from headrace_core.sim.roofline import Peaks
from headrace_engine import device as devices

log = logging.getLogger(__name__)
GEMM_SECONDS, READ_SECONDS = 0.06, 0.05  # besides making the buffers
MAX_RUNS = 30
_measured: dict[tuple[str, torch.dtype, int], Peaks] = {}


def measure(device: torch.device, dtype: torch.dtype) -> Peaks:
    """The peaks of `device` for matrix products of `dtype`. Zeros, with a log line, if they cannot be measured."""
    key = (str(device), dtype, torch.get_num_threads())
    if key not in _measured:
        try:
            with torch.inference_mode():
                _measured[key] = Peaks(flops=_gemm(device, dtype), read_bytes=_read(device))
        except (RuntimeError, MemoryError) as error:  # no memory left, or no kernel for the number format
            log.warning("the device's peaks could not be measured, so MFU and MBU stay 0: %s", error)
            _measured[key] = Peaks()
    return _measured[key]


def _gemm(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a matrix product with a prefill's shape and weights larger than the first caches."""
    rows, size = (4096, 8192) if device.type == "cuda" else (128, 1024)
    data = torch.ones(rows, size, device=device, dtype=dtype)
    weight = torch.full((size, size), 0.5, device=device, dtype=dtype)
    return 2.0 * rows * size * size / _best(lambda: torch.nn.functional.linear(data, weight), device, GEMM_SECONDS)


def _read(device: torch.device) -> float:
    """Bytes per second of reading a buffer far larger than the caches."""
    size = 1 << 30 if device.type == "cuda" else min(96 << 20, max(16 << 20, devices.memory_bytes() // 64))
    # Ones, since memory never written reads as one shared page of zeros, from the cache.
    buffer = torch.ones(size // 4, device=device, dtype=torch.float32)
    return size / _best(buffer.sum, device, READ_SECONDS)


def _best(run: Callable[[], object], device: torch.device, budget: float) -> float:
    """Seconds of the fastest run, of at least two and as many as fit in `budget`; on a GPU after a warm-up run."""
    if device.type == "cuda":
        run()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or (spent < budget and runs < MAX_RUNS):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        took = time.perf_counter() - started
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
