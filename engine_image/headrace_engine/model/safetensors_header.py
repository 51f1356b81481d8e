"""The header of a safetensors file, checked against the file's size, so that an error names the tensor.

The format: 8 bytes with the header's length, a JSON header of that many bytes, then the data. The header has dtype,
shape and place of each tensor.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from headrace_engine.errors import ModelError

AGAIN = "the file is truncated or damaged; copy or download it again"
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor in `path`. Raises `ModelError` if the file and its header disagree."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        header_size = int.from_bytes(handle.read(8), "little")
        if size < 8 or header_size > size - 8:
            raise ModelError(f"{path}: {size} bytes, but its header alone needs {header_size + 8}: {AGAIN}")
        raw = handle.read(header_size)
    try:
        entries = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        ends = {name: _checked_end(path, name, entry=entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelError(f"{path}: its header cannot be read ({error!r}): {AGAIN}") from error
    _check_size(path, size - 8 - header_size, ends=ends, header_size=header_size)
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}


def _checked_end(path: Path, name: str, *, entry: Any) -> int:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    bits = BITS.get(entry["dtype"])
    needed = None if bits is None else math.prod(entry["shape"]) * bits // 8
    if needed is not None and end - begin != needed:
        raise ModelError(
            f"{path}: tensor {name} of {entry['dtype']}{entry['shape']} needs {needed} bytes, but its header gives it "
            f"{end - begin}: {AGAIN}"
        )
    return end


def _check_size(path: Path, data: int, *, ends: dict[str, int], header_size: int) -> None:
    expected = max(ends.values(), default=0)
    if data == expected:
        return
    cut = min((end, name) for name, end in ends.items() if end > data)[1] if data < expected else None
    which = f" (tensor {cut} is cut off)" if cut else ""
    raise ModelError(
        f"{path}: {data + 8 + header_size} bytes, but its header says {expected + 8 + header_size}{which}: {AGAIN}"
    )
