"""The header of a GGUF file: metadata and tensor positions, checked against the file's size. Reads no tensors.

Arrays (mostly the vocabulary) are skipped, since the server needs only single values of the metadata.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
# Value types of fixed size, as struct writes them; 8 is a string, 9 an array.
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
AGAIN = "the file is truncated or damaged; copy or download it again"
Value = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor. `shape` is in the order of torch; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Metadata and tensors of a GGUF file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """`llama`, `gemma3`, …"""
        return str(self.metadata["general.architecture"])

    @property
    def adds_bos(self) -> bool:
        """Whether texts begin with BOS. If the file does not say: as in llama.cpp, only for sentencepiece."""
        said = self.metadata.get("tokenizer.ggml.add_bos_token")
        return self.metadata.get("tokenizer.ggml.model") == "llama" if said is None else bool(said)

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end a text or a turn."""
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = (self.metadata.get(f"tokenizer.ggml.{name}") for name in names)
        return frozenset(int(value) for value in found if value is not None)


class _Cursor:
    """Reads little-endian values one by one; EOFError instead of reading beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, size: int) -> int:
        """Advance by `size` bytes and return the position before."""
        begin = self.at
        if size > len(self.data) - begin:
            raise EOFError(f"it ends at byte {len(self.data)}, inside its header")
        self.at = begin + size
        return begin

    def number(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(f"<{form}", self.data, self.skip(struct.calcsize(f"<{form}")))[0]
        return value

    def count(self, form: str = "Q") -> int:
        return int(self.number(form))

    def string(self) -> str:
        size = self.count()
        begin = self.skip(size)
        return self.data[begin : begin + size].decode(errors="replace")

    def value(self) -> Value | None:
        """A metadata value; None for an array."""
        kind = self.count("I")
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(FIXED[kind])
        self._skip_array()
        return None

    def _skip_array(self) -> None:
        kind, count = self.count("I"), self.count()
        if kind == STRING:
            for _ in range(count):
                self.skip(self.count())
        else:
            self.skip(struct.calcsize(FIXED[kind]) * count)

    def tensor(self) -> GgufTensor:
        name = self.string()
        dims = [self.count() for _ in range(self.count("I"))]
        return GgufTensor(name=name, shape=tuple(reversed(dims)), kind=self.count("I"), offset=self.count())


def read_header(path: Path) -> GgufHeader:
    """The header of `path`. Raises `ModelError` naming the file, the tensor if one is damaged, and what to do."""
    with path.open("rb") as handle:
        magic = handle.read(4)
        if magic != MAGIC:
            raise ModelError(
                f"{path} is not a GGUF file (it starts with {magic!r}): give a .gguf file or a model folder"
            )
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            try:
                header = _header(path, cursor)
                _check_tensors(header, cursor)
            except EOFError as error:
                raise ModelError(f"{path}: {error}: {AGAIN}") from error
            except (KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
                raise ModelError(f"{path}: its header cannot be read ({error!r}): {AGAIN}") from error
    return header


def _header(path: Path, cursor: _Cursor) -> GgufHeader:
    cursor.skip(len(MAGIC))
    version = cursor.count("I")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} is a GGUF file of version {version}; versions {' and '.join(map(str, VERSIONS))} can be read: "
            "convert it again with a current converter"
        )
    num_tensors, num_values = cursor.count(), cursor.count()
    metadata = {}
    for _ in range(num_values):
        name = cursor.string()
        value = cursor.value()
        if value is not None:
            metadata[name] = value
    if "general.architecture" not in metadata:
        raise ModelError(f"{path} does not name its architecture (general.architecture): {AGAIN}")
    return GgufHeader(path=path, metadata=metadata, tensors=tuple(cursor.tensor() for _ in range(num_tensors)))


def _check_tensors(header: GgufHeader, cursor: _Cursor) -> None:
    alignment = int(header.metadata.get("general.alignment") or ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    size = len(cursor.data)
    for tensor in header.tensors:
        end = start + tensor.offset + _num_bytes(header.path, tensor)
        if end > size:
            raise ModelError(f"{header.path}: {size} bytes, but tensor {tensor.name} ends at byte {end}: {AGAIN}")


def _num_bytes(path: Path, tensor: GgufTensor) -> int:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415  (only for GGUF files)
    except ImportError as error:
        raise ModelError(f"{path}: GGUF files need the package gguf. Run: pip install 'headrace[engine]'") from error
    try:
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: tensor {tensor.name} has the unknown type {tensor.kind}. Run: pip install -U gguf, or use a "
            "file with another quantization"
        ) from error
    return math.prod(tensor.shape) // int(elements) * int(size)
