"""This machine: device, fast dtypes, cores, memory, CPU features. Reads /proc and cgroups."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from headrace_core import cpu_info
from headrace_engine.errors import SettingsError

FAST_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO_DTYPE_VARIABLE = "HEADRACE_AUTO_DTYPE"
CGROUP = Path("/sys/fs/cgroup")


def cpu_features() -> tuple[str, ...]:
    """Those instruction sets of this machine's CPU that decide a model's speed."""
    return cpu_info.cpu_features(_read(Path("/proc/cpuinfo")))


def available_cores() -> int:
    """Cores that this process may use, by its affinity and its cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def default_threads() -> int:
    """CPU threads of the model: all cores but one, which is left for tokenizing, HTTP and metrics.

    A step waits for its slowest thread, so one thread sharing its core with the server would delay all of them.
    """
    return max(1, available_cores() - 1)


def memory_bytes() -> int:
    """Memory of the machine, or the cgroup's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(CGROUP / "memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def pick_device(wanted: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as a torch device. Raises `SettingsError`."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if wanted not in ("auto", "cuda"):
        raise SettingsError(f"--device {wanted}: must be auto, cpu or cuda")
    if not torch.cuda.is_available():
        raise SettingsError(
            f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu or fix the driver"
        )
    return torch.device("cuda", torch.cuda.current_device())


def pick_dtype(knob: str, device: torch.device, features: tuple[str, ...]) -> torch.dtype:
    """The knob `dtype` as a torch dtype; `auto` is what is fast on the device, or $HEADRACE_AUTO_DTYPE.

    Raises `SettingsError` if that variable is not a dtype.
    """
    if knob != "auto":
        return DTYPES[knob]
    if stated := os.environ.get(AUTO_DTYPE_VARIABLE):
        if stated not in DTYPES:
            raise SettingsError(f"${AUTO_DTYPE_VARIABLE} {stated}: must be one of {', '.join(DTYPES)}, or unset")
        return DTYPES[stated]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if FAST_BF16.intersection(features) else torch.float32


def pick_kv_dtype(knob: str, dtype: torch.dtype) -> torch.dtype:
    """The knob `kv_cache_dtype` as a torch dtype; `auto` is that of the model."""
    return dtype if knob == "auto" else DTYPES[knob]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, `bfloat16`, …"""
    return str(dtype).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    """The GPU's name, or such as `x86_64 CPU`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU"


def pretends_gpu() -> bool:
    """Whether the GPU allotted by the device plugin is a pretend one."""
    return os.environ.get("HEADRACE_PRETEND_GPU", "").lower() in ("1", "true")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
