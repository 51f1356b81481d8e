"""Facts about the machine that ran a benchmark: the numbers mean little without them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from headrace_core import cpu_info

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES")
PACKAGES = ("headrace", "aiohttp", "torch", "transformers")


def describe_machine() -> dict[str, Any]:
    """JSON-ready facts. Versions are read from the installed packages; none is imported."""
    cpuinfo = _cpuinfo()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_info.cpu_model(cpuinfo) or platform.processor() or platform.machine(),
        "cpu_features": list(cpu_info.cpu_features(cpuinfo)),
        "cores": cores(),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": _memory(),
        "load_average": load_average(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def load_average() -> float | None:
    """Load average over the last minute: processes that run or wait for a core."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
