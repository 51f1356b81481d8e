"""A model whose files lie is refused by file and tensor, with what to do, and never answers with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headrace_engine.errors import ModelError
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.weights import INDEX, WEIGHTS, find_source

SHARD = "200KB"


@pytest.fixture
def folder(tiny: Any, tokenizer: Any, tmp_path: Path) -> Path:
    target = tmp_path / "my model"
    tiny("llama").module.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


@pytest.fixture
def sharded(tokenizer: Any, tmp_path: Path) -> Path:
    target = tmp_path / "sharded"
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, vocab_size=257,
        bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(target, max_shard_size=SHARD)
    tokenizer.save_pretrained(target)
    assert len(list(target.glob("*.safetensors"))) > 1
    return target


def load(where: Path) -> LoadedModel:
    return load_model(find_source(str(where)), device=torch.device("cpu"), dtype=torch.float32)


def change(path: Path, change_one: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Rewrite a safetensors file."""
    tensors = load_file(path)
    change_one(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def set_config(where: Path, **values: Any) -> None:
    path = where / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_loads(folder: Path, form: str) -> None:
    source = find_source(form.format(folder))
    assert source.name == "my model"
    loaded = load_model(source, device=torch.device("cpu"), dtype=torch.float32)
    assert loaded.architecture == "LlamaForCausalLM"
    assert loaded.eos_token_ids >= {256}


def test_a_sharded_folder_loads_to_the_last_bit(sharded: Path) -> None:
    held = {name: tensor for shard in sharded.glob("*.safetensors") for name, tensor in load_file(shard).items()}
    loaded = load(sharded).module.state_dict()
    assert held.keys() == loaded.keys()
    assert all(torch.equal(held[name], loaded[name]) for name in held)


def test_tied_embeddings_need_no_head_in_the_file(tokenizer: Any, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, vocab_size=257,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)
    module = load(tmp_path).module
    assert module.lm_head.weight is module.model.embed_tokens.weight
    # Untied by its config, the same file lacks a tensor.
    set_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"holds no tensor lm_head\.weight, .*values would be random"):
        load(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere does not exist.*model demo"):
        find_source(str(tmp_path / "nowhere"))


def test_truncated_weights_are_named_with_both_sizes_and_the_tensor(folder: Path) -> None:
    shard = folder / WEIGHTS
    data = shard.read_bytes()
    shard.write_bytes(data[:-100])
    cut = rf"{len(data) - 100} bytes.* says {len(data)} \(tensor model\.norm\.weight is cut off\)"
    with pytest.raises(ModelError, match=rf"{WEIGHTS}: {cut}.*again"):
        find_source(str(folder))
    shard.write_bytes(data + b"more")
    with pytest.raises(ModelError, match=rf"{len(data) + 4} bytes, but its header says {len(data)}: "):
        find_source(str(folder))
    shard.write_bytes(data[:5])
    with pytest.raises(ModelError, match="truncated"):
        find_source(str(folder))
    shard.write_bytes(b"")
    with pytest.raises(ModelError, match="truncated"):
        find_source(str(folder))
    shard.write_bytes(b"\x10" + b"\0" * 7 + b"not json at all!")
    with pytest.raises(ModelError, match="cannot be read"):
        find_source(str(folder))


def test_a_header_that_contradicts_itself_is_named_by_tensor(folder: Path) -> None:
    shard = folder / WEIGHTS
    data = shard.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["model.norm.weight"]["shape"] = [31]
    raw = json.dumps(header).encode()
    shard.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + size :])
    with pytest.raises(ModelError, match=rf"{WEIGHTS}: tensor model\.norm\.weight of F32\[31\] needs 124 .* 128"):
        find_source(str(folder))


def test_missing_parts_are_named(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(ModelError, match=r"does not contain model-1.safetensors"):
        find_source(str(folder))
    (folder / INDEX).unlink()
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        find_source(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        find_source(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config.json"):
        find_source(str(folder))


def test_a_missing_shard_and_a_missing_tensor_are_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    name = "model.layers.2.mlp.up_proj.weight"
    shard = index["weight_map"][name]
    change(sharded / shard, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=rf"{shard} holds tensor {name}, but it does not"):
        find_source(str(sharded))
    # An index that does not know the tensor either: nothing is left but to count what came in.
    del index["weight_map"][name]
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=rf"sharded holds no tensor {name}, which Llama"):
        load(sharded)
    (sharded / shard).unlink()
    with pytest.raises(ModelError, match=rf"does not contain {shard}, named in {INDEX}"):
        find_source(str(sharded))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "\xff"])
def test_a_broken_index_is_named(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=rf"{INDEX} is not a weight index.*Copy it again"):
        find_source(str(sharded))


def test_an_index_that_leaves_the_folder_is_refused(sharded: Path) -> None:
    (sharded / INDEX).write_text('{"weight_map": {"a": "../other/model.safetensors"}}')
    with pytest.raises(ModelError, match="not a file of this folder"):
        find_source(str(sharded))


def test_shards_without_their_index_are_named(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor .* but model-00001-of-"):
        find_source(str(sharded))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    change(folder / WEIGHTS, lambda tensors: tensors.update({name: torch.zeros(8, 32)}))
    with pytest.raises(ModelError, match=rf"{WEIGHTS}: tensor {name} has the shape \[8, 32\], .* needs \[16, 32\]"):
        load(folder)


def test_weights_of_a_deeper_model_are_not_cut_short(folder: Path) -> None:
    set_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"holds tensor model\.layers\.1\..* \(and 8 more\), .*no place"):
        load(folder)
    set_config(folder, num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"holds no tensor model\.layers\.2\..*random"):
        load(folder)


def test_constants_of_old_checkpoints_do_no_harm(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change(folder / WEIGHTS, lambda tensors: tensors.update({name: torch.ones(4)}))
    assert load(folder).num_layers == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float) -> None:
    name = "model.embed_tokens.weight"  # a row that a short probe would never read
    change(folder / WEIGHTS, lambda tensors: tensors[name][200, 3:5].fill_(value))
    with pytest.raises(ModelError, match=rf"{WEIGHTS}: tensor {name} holds 2 numbers that are NaN or infinite"):
        load(folder)


def test_weights_too_large_for_float16_are_named(folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change(folder / WEIGHTS, lambda tensors: tensors[name][0, 0].fill_(1e6))
    assert load(folder).dtype is torch.float32
    with pytest.raises(ModelError, match=rf"{name} holds 1 numbers .*as float16.*try bfloat16"):
        load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float16)


def test_a_pickle_is_never_opened(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin, a pickle.*does not open it.*Convert it once"):
        find_source(str(folder))


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    (folder / "wombat.py").write_text("raise SystemExit('ran')")
    set_config(folder, model_type="wombat", auto_map={"AutoConfig": "wombat.Config"})
    with pytest.raises(ModelError, match="cannot load the config"):
        load(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not a model's config"), ("[]", "has no model_type"), ("{}", "has no model_type"),
     ('{"model_type": "wombat"}', "cannot load the config.*wombat"), ("\xff", "is not a model's config")],
)  # fmt: skip
def test_a_broken_config_is_named(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=words) as refused:
        load(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, r"hidden size \(32\) is not a multiple of the number of attention heads \(5\)"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "8 is not a multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"hidden_size": -32}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_act": "wombat"}, "cannot be built.*wombat"),
        ({"head_dim": 16}, r"k_proj\.weight \(and 7 more\) has the shape \[16, 32\], .* needs \[32, 32\]"),
    ],
)
def test_impossible_sizes_are_named(folder: Path, values: dict[str, Any], words: str) -> None:
    set_config(folder, **values)
    with pytest.raises(ModelError, match=words) as refused:
        load(folder)
    assert "config.json" in str(refused.value) or str(folder) in str(refused.value)


def test_a_broken_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot load the tokenizer.*tokenizer files"):
        load(folder)


def test_a_broken_generation_config_is_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json cannot be read"):
        load(folder)


def test_a_hub_id_is_left_to_transformers() -> None:
    assert find_source("org/model").where == find_source("hf://org/model").where == "org/model"


def test_a_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"org/model: cannot load the config from the model hub.*HF_TOKEN.*folder"):
        load_model(find_source("org/model"), device=torch.device("cpu"), dtype=torch.float32)
