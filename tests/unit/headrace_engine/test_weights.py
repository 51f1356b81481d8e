"""A wrong model is named, with what to do, before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_engine.errors import ModelError
from headrace_engine.model import load_model
from headrace_engine.weights import find_source


@pytest.fixture
def folder(tiny: Any, tokenizer: Any, tmp_path: Path) -> Path:
    target = tmp_path / "my model"
    tiny("llama").module.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_loads(folder: Path, form: str) -> None:
    source = find_source(form.format(folder))
    assert source.name == "my model"
    loaded = load_model(source, device=torch.device("cpu"), dtype=torch.float32)
    assert loaded.architecture == "LlamaForCausalLM"
    assert loaded.eos_token_ids >= {256}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere does not exist.*model demo"):
        find_source(str(tmp_path / "nowhere"))


def test_truncated_weights_are_named_with_both_sizes(folder: Path) -> None:
    shard = folder / "model.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-100])
    with pytest.raises(ModelError, match=rf"model.safetensors: {len(data) - 100} bytes .* says {len(data)}.*again"):
        find_source(str(folder))
    shard.write_bytes(data[:5])
    with pytest.raises(ModelError, match="truncated"):
        find_source(str(folder))
    shard.write_bytes(b"\x10" + b"\0" * 7 + b"not json at all!")
    with pytest.raises(ModelError, match="cannot be read"):
        find_source(str(folder))


def test_missing_parts_are_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(ModelError, match=r"lacks model-1.safetensors"):
        find_source(str(folder))
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        find_source(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        find_source(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config.json"):
        find_source(str(folder))


def test_a_broken_config_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the config"):
        load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGML....")
    with pytest.raises(ModelError, match="not a GGUF file"):
        find_source(str(path))


def test_a_truncated_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ModelError, match=r"x\.gguf: cannot load"):
        load_model(find_source(str(path)), device=torch.device("cpu"), dtype=torch.float32)


def test_a_hub_id_is_left_to_transformers() -> None:
    assert find_source("org/model").where == find_source("hf://org/model").where == "org/model"
