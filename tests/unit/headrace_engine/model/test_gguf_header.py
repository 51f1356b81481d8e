"""A GGUF file loads exactly, with BOS as its metadata says; damaged or inconsistent files are refused by name."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFWriter, RopeScalingType
from transformers.convert_slow_tokenizer import bytes_to_unicode

from headrace_engine.errors import ModelError
from headrace_engine.model import demo as demo_model
from headrace_engine.model.gguf_header import read_header
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.weights import find_source

WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
BOS, EOS, AB = 257, 258, 256
Alter = Callable[[GGUFWriter], Any]


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=259, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture
def write(module: Any, tmp_path: Path) -> Callable[..., Path]:
    def make(alter: Alter = lambda _: None, *, arch: str = "llama", without: str = "") -> Path:
        path = tmp_path / "tiny.gguf"
        writer = GGUFWriter(path, arch)
        _metadata(writer, module.config)
        alter(writer)
        for name, tensor in module.state_dict().items():
            gguf_name = _name(name)
            if gguf_name != without:
                writer.add_tensor(gguf_name, _permuted(name, tensor.numpy(), module.config))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def _metadata(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_name("tiny")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*bytes_to_unicode().values(), "ab", "<s>", "</s>"])
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)


def _name(name: str) -> str:
    base = name.removesuffix(".weight")
    if base in WHOLE:
        return f"{WHOLE[base]}.weight"
    _, _, layer, rest = base.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}.weight"


def _permuted(name: str, array: Any, config: Any) -> Any:
    """Permute queries and keys as converters do for the Llama family."""
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for end, count in heads.items():
        if name.endswith(end):
            return array.reshape(count, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape).copy()
    return array


def load(path: Path) -> LoadedModel:
    return load_model(find_source(str(path)), device=torch.device("cpu"), dtype=torch.float32)


def test_loads_to_the_last_bit(write: Any, module: Any) -> None:
    loaded = load(write())
    assert loaded.name == "tiny"
    expected = module.state_dict()
    held = loaded.module.state_dict()
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], expected[name]) for name in held)
    assert loaded.eos_token_ids == {EOS}


@pytest.mark.parametrize(("said", "expected"), [(True, [BOS, AB, 66]), (False, [AB, 66]), (None, [AB, 66])])
def test_bos_comes_in_front_where_the_metadata_says_so(write: Any, said: bool | None, expected: list[int]) -> None:
    path = write() if said is None else write(lambda writer: writer.add_add_bos_token(said))
    assert load(path).tokenizer("abc")["input_ids"] == expected


def test_without_metadata_about_bos_only_sentencepiece_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_header(path).adds_bos


def test_a_chat_template_gets_the_bos_that_runtimes_of_gguf_add(write: Any) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

    def alter(writer: GGUFWriter, text: str) -> None:
        writer.add_add_bos_token(True)
        writer.add_chat_template(text)

    for text in (template, "{{ bos_token }}" + template):
        tokenizer = load(write(lambda writer, text=text: alter(writer, text))).tokenizer
        assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<s>x"


def test_converted_for_the_cache_it_is_the_same_model(write: Any, tmp_path: Path) -> None:
    def alter(writer: GGUFWriter) -> None:
        writer.add_add_bos_token(True)
        writer.add_eot_token_id(BOS)
        writer.add_chat_template("{{ bos_token }}hi")

    path = write(alter)
    demo_model._convert(path, tmp_path / "built")
    served = load_model(find_source(str(path)), device=torch.device("cpu"), dtype=torch.bfloat16)
    kept = load_model(find_source(str(tmp_path / "built")), device=torch.device("cpu"), dtype=torch.bfloat16)
    held = kept.module.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in served.module.state_dict().items())
    assert kept.tokenizer("abc")["input_ids"] == served.tokenizer("abc")["input_ids"] == [BOS, AB, 66]
    assert kept.tokenizer.chat_template == served.tokenizer.chat_template
    assert kept.eos_token_ids == served.eos_token_ids == {EOS, BOS}


def test_the_end_of_a_turn_ends_an_answer(write: Any) -> None:
    assert load(write(lambda writer: writer.add_eot_token_id(BOS))).eos_token_ids == {EOS, BOS}


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(4, dtype=np.float32)),
         r"rope_freqs\.weight changes"),
        (lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(32, dtype=np.float32)),
         r"holds tensor blk\.0\.attn_q\.bias, for which LlamaForCausalLM has no place"),
        (lambda writer: (writer.add_rope_scaling_type(RopeScalingType.YARN), writer.add_rope_scaling_factor(4.0)),
         "yarn RoPE scaling changes"),
    ],
)  # fmt: skip
def test_what_transformers_would_pass_over_is_refused(write: Any, alter: Alter, words: str) -> None:
    with pytest.raises(ModelError, match=rf"tiny\.gguf.*{words}"):
        load(write(alter))


def test_a_tensor_that_is_missing_is_named(write: Any) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf holds no tensor model\.layers\.1\.mlp\.up_proj\.weight.*random"):
        load(write(without="blk.1.ffn_up.weight"))


def test_an_unknown_architecture_is_named(write: Any) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf: cannot load the config: .*wombat.*Use another GGUF"):
        load(write(arch="wombat"))


def test_not_a_number_is_named(write: Any, module: Any) -> None:
    path = write()
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32("nan").tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"tiny\.gguf: tensor lm_head\.weight holds 1 numbers that are NaN"):
        load(path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for data in (b"GGML....", b""):
        path.write_bytes(data)
        with pytest.raises(ModelError, match="not a GGUF file"):
            find_source(str(path))


def test_every_cut_is_found(write: Any) -> None:
    path = write()
    data = path.read_bytes()
    cuts = [*range(4, 400, 7), *range(400, len(data), 997), len(data) - 1]
    for cut in cuts:
        path.write_bytes(data[:cut])
        with pytest.raises(ModelError, match=r"tiny\.gguf.*(inside its header|but tensor .* ends at byte).*again"):
            read_header(path)
    path.write_bytes(data[:-200])
    with pytest.raises(ModelError, match=r"but tensor \S+ ends at byte \d+: the file is truncated"):
        read_header(path)


def test_damage_anywhere_in_the_header_gives_an_error_without_a_traceback(write: Any) -> None:
    path = write()
    data = path.read_bytes()
    for at in range(4, 600):
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        with contextlib.suppress(ModelError):  # some bytes are names or values that nobody reads
            read_header(path)


def test_another_version_is_named(write: Any) -> None:
    path = write()
    data = bytearray(path.read_bytes())
    data[4:8] = (1).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ModelError, match="GGUF file of version 1"):
        read_header(path)
