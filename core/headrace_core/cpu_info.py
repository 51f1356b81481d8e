"""The fields of /proc/cpuinfo that decide a model's speed. Pure."""

from __future__ import annotations

# Features that decide the speed of matrix products, as /proc/cpuinfo spells it.
FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8",
    "asimd", "asimdhp", "bf16", "i8mm", "sve",
)  # fmt: skip


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo."""
    first = text.split("\n\n", 1)[0]
    fields = (line.partition(":") for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_features(text: str) -> tuple[str, ...]:
    """Those of `FEATURES` that the first processor has; x86 lists them as `flags`, Arm as `Features`."""
    fields = parse_cpuinfo(text)
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return tuple(name for name in FEATURES if name in flags)


def cpu_model(text: str) -> str | None:
    """Name of the first processor. Arm doesn't say."""
    return parse_cpuinfo(text).get("model name") or None
