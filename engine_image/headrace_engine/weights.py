"""Find and check a model's files before transformers reads them, so that an error names the file and what to do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from headrace_engine.errors import ModelError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What to hand to transformers: a folder or hub id, and the GGUF file inside the folder if that is the model."""

    where: str
    name: str  # served under this name by default
    gguf_file: str | None = None

    @property
    def location(self) -> dict[str, str]:
        """Keyword arguments of every `from_pretrained`."""
        location = {"pretrained_model_name_or_path": self.where}
        return location if self.gguf_file is None else location | {"gguf_file": self.gguf_file}


def find_source(model: str) -> Source:
    """`model` is a folder, a GGUF file, a `file://` address of either, or a hub id. Raises `ModelError`."""
    path = _as_path(model)
    if path is None:
        hub_id = model.removeprefix("hf://")
        return Source(where=hub_id, name=hub_id)
    if not path.exists():
        raise ModelError(
            f"model {path} does not exist: give a folder with config.json and *.safetensors, a .gguf file, or a hub id "
            "like org/name (`headrace model demo` makes a small one and prints its folder)"
        )
    if path.is_file():
        return _gguf_source(path)
    _check_folder(path)
    return Source(where=str(path), name=path.resolve().name)


def _as_path(model: str) -> Path | None:
    if model.startswith("file://"):
        return Path(unquote(urlparse(model).path))
    if model.startswith("hf://"):
        return None
    path = Path(model).expanduser()
    looks_like_hub = HUB_ID.fullmatch(model) is not None and not model.startswith(".")
    return None if looks_like_hub and not path.exists() else path


def _gguf_source(path: Path) -> Source:
    with path.open("rb") as handle:
        magic = handle.read(4)
    if magic != GGUF_MAGIC:
        raise ModelError(f"{path} is not a GGUF file (it starts with {magic!r}): give a .gguf file or a model folder")
    return Source(where=str(path.parent), name=path.stem, gguf_file=path.name)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: give the folder that holds a transformers model")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): "
            "copy the model's tokenizer files into it"
        )
    _check_index(folder)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ModelError(f"{folder} has no *.safetensors file: copy the weights into it or convert them to safetensors")
    for shard in shards:
        _check_shard(shard)


def _check_index(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} is not a weight index: {error!r}. Copy it again") from error
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise ModelError(f"{folder} lacks {', '.join(missing)}, named in {index.name}: copy the missing files")


def _check_shard(path: Path) -> None:
    """A safetensors file says its own length: 8 bytes, a JSON header of that many bytes, then the data."""
    size = path.stat().st_size
    again = "the file is truncated or damaged; copy or download it again"
    with path.open("rb") as handle:
        header_size = int.from_bytes(handle.read(8), "little")
        if size < 8 or header_size > size - 8:
            raise ModelError(f"{path}: {size} bytes, but its header alone needs {header_size + 8}: {again}")
        try:
            header = json.loads(handle.read(header_size))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ModelError(f"{path}: its header cannot be read ({error!r}): {again}") from error
    expected = 8 + header_size + end
    if size != expected:
        raise ModelError(f"{path}: {size} bytes where its header says {expected}: {again}")
