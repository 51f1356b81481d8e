"""Find and check a model's files before transformers reads them, so that an error names the file and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from headrace_engine.errors import ModelError, ModelNotFoundError
from headrace_engine.model.gguf_header import GgufHeader, read_header
from headrace_engine.model.safetensors_header import tensor_shapes

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# transformers divides by some of these before it checks them.
COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
PICKLES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where transformers finds a model: a folder or hub id, and if it is a GGUF file, that file in the folder."""

    where: str
    name: str  # served under this name by default
    gguf: GgufHeader | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)  # file of each tensor, of a safetensors folder
    is_hub: bool = False
    revision: str | None = None  # branch, tag or commit of a hub id
    chat_template: Path | None = None  # instead of the model's own

    @property
    def gguf_file(self) -> str | None:
        """The GGUF file's name in the folder."""
        return None if self.gguf is None else self.gguf.path.name

    @property
    def location(self) -> dict[str, Any]:
        """Keyword arguments of every `from_pretrained`. Code that comes with a model is never run."""
        location = {"pretrained_model_name_or_path": self.where, "trust_remote_code": False, **self.of_revision}
        return location if self.gguf is None else location | {"gguf_file": self.gguf_file}

    @property
    def of_revision(self) -> dict[str, Any]:
        """The keyword argument for the revision, if one is set."""
        return {} if self.revision is None else {"revision": self.revision}

    def has_file(self, name: str) -> bool:
        """Whether the folder has a file of that name; False for a hub id."""
        return not self.is_hub and (Path(self.where) / name).is_file()

    def file_of(self, tensor: str) -> str:
        """The path of the file that holds `tensor`; the folder or hub id if that is unknown."""
        if self.gguf is not None:
            return str(self.gguf.path)
        file = self.tensors.get(tensor)
        return self.where if file is None else str(Path(self.where) / file)


def find_source(model: str, *, revision: str | None = None, chat_template: Path | None = None) -> WeightSource:
    """`model` is a folder, a GGUF file, a `file://` address of either, or a hub id. Raises `ModelError`.

    `revision` is a branch, tag or commit of a hub id; `chat_template` a file to use instead of the model's own.
    """
    path = _as_path(model)
    if path is None:
        hub_id = model.removeprefix("hf://")
        source = WeightSource(where=hub_id, name=hub_id, is_hub=True, revision=revision)
    elif revision is None:
        source = _local_source(path)
    else:
        raise ModelError(
            f"--revision {revision}: {path} is a file or folder, which has no revisions: omit it, or give a hub id"
        )
    return replace(source, chat_template=chat_template)


def _local_source(path: Path) -> WeightSource:
    if not path.exists():
        raise ModelNotFoundError(
            f"model {path} does not exist: give a folder with config.json and *.safetensors, a .gguf file, or a hub id "
            "like org/name (`headrace model demo` makes a small one and prints its folder)"
        )
    try:
        if path.is_file():
            return WeightSource(where=str(path.parent), name=path.stem, gguf=read_header(path))
        return WeightSource(where=str(path), name=path.resolve().name, tensors=_check_folder(path))
    except OSError as error:
        raise ModelError(f"{error.filename or path} cannot be read: {error.strerror}. Fix its permissions") from error


def _as_path(model: str) -> Path | None:
    if model.startswith("file://"):
        return Path(unquote(urlparse(model).path))
    if model.startswith("hf://"):
        return None
    path = Path(model).expanduser()
    looks_like_hub = HUB_ID.fullmatch(model) is not None and not model.startswith(".")
    return None if looks_like_hub and not path.exists() else path


def _check_folder(folder: Path) -> dict[str, str]:
    """The file name of each tensor. Raises `ModelError` if something is missing or damaged."""
    _check_config(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): "
            "copy the model's tokenizer files into it"
        )
    if (folder / INDEX).is_file():
        return _check_index(folder)
    if (folder / WEIGHTS).is_file():
        return dict.fromkeys(tensor_shapes(folder / WEIGHTS), WEIGHTS)
    raise ModelError(_no_weights(folder))


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json: give the folder that holds a transformers model")
    config = _json(path, "a model's config")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} has no model_type, so it is not the config of a transformers model. Copy it again")
    for key in COUNTS:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ModelError(f"{path}: {key} is {value!r}, which must be a whole number above 0. Copy it again")


def _no_weights(folder: Path) -> str:
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if shards:
        return (
            f"{folder} has neither {WEIGHTS} nor {INDEX}, but {', '.join(shards[:3])}: "
            f"copy the index too, or if there is only one file, rename it to {WEIGHTS}"
        )
    pickles = sorted({path.name for pattern in PICKLES for path in folder.glob(pattern)})
    if pickles:
        return (
            f"{folder} has its weights in {pickles[0]}, a pickle, which may run code when it is opened, so headrace "
            "does not open it. Convert it once where you trust it: "
            'python -c "from transformers import AutoModelForCausalLM as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    return f"{folder} has no *.safetensors file: copy the weights into it or convert them to safetensors"


def _check_index(folder: Path) -> dict[str, str]:
    index = folder / INDEX
    content = _json(index, "a weight index")
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ModelError(f"{index} is not a weight index (no weight_map of names). Copy it again")
    names = sorted(set(files.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelError(f"{index} names {outside[0]}, which is not a file of this folder. Copy the index again")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ModelError(
            f"{folder} does not contain {', '.join(missing)}, named in {index.name}: copy the missing files"
        )
    held = {name: tensor_shapes(folder / name) for name in names}
    lost = sorted(tensor for tensor, name in files.items() if tensor not in held[name])
    if lost:
        raise ModelError(
            f"{index} says that {folder / files[lost[0]]} holds tensor {lost[0]}{and_more(lost)}, but it does not: "
            "index and files belong to different models; copy both again"
        )
    return files


def and_more(names: Sized) -> str:
    """Such as ` (and 3 more)`, after the one that a message names; empty if it is the only one."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not {what}: {error}. Copy it again") from error
