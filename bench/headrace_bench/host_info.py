"""The machine under a benchmark: numbers mean little without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU_FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm",
    "sve",
)  # fmt: skip
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES")
PACKAGES = ("headrace", "aiohttp", "torch", "transformers")


def describe_machine() -> dict[str, Any]:
    """JSON-ready facts. Versions are read from the installed packages; none is imported."""
    cpuinfo = _cpuinfo()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(cpuinfo),
        "cpu_features": cpu_features(cpuinfo),
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
    """Processes that want a core, over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cpu_model(cpuinfo: Mapping[str, str]) -> str:
    """Name of the processor, as far as it is known."""
    return cpuinfo.get("model name") or platform.processor() or platform.machine()


def cpu_features(cpuinfo: Mapping[str, str]) -> list[str]:
    """Those instruction sets that matter for a model's speed."""
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    return [name for name in CPU_FEATURES if name in flags]


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo."""
    first = text.split("\n\n", 1)[0]
    fields = (line.partition(":") for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in fields}


def _cpuinfo() -> dict[str, str]:
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        return {}


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
