"""The tokenizer does what the model needs, also where its files are silent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from jinja2 import TemplateError
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_engine.errors import ModelError
from headrace_engine.loop.probe import probe
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.tokenizer import GEMMA_TEMPLATE
from headrace_engine.model.weights import find_source

BOS, EOS, START, END = 256, 257, 258, 259
GEMMA = {"model_type": "gemma3_text", "sliding_window": 9, "query_pre_attn_scalar": 8, "head_dim": 8}


def make_folder(folder: Path, *, gemma: bool = False, rows: int = 260, extra: tuple[str, ...] = ()) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>"})
    tokenizer.add_tokens(["<start_of_turn>", "<end_of_turn>"] if gemma else ["<a>", "<b>"], special_tokens=True)
    tokenizer.add_tokens(list(extra), special_tokens=True)
    tokenizer.save_pretrained(folder)
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 32, "vocab_size": rows, "max_position_embeddings": 256, "bos_token_id": BOS,
        "eos_token_id": EOS, "pad_token_id": 0,
    }  # fmt: skip
    config = transformers.Gemma3TextConfig(**sizes | GEMMA) if gemma else transformers.LlamaConfig(**sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def say(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def load(folder: Path) -> LoadedModel:
    return load_model(find_source(str(folder)), device=torch.device("cpu"), dtype=torch.float32)


def first_ids(folder: Path) -> list[int]:
    ids: list[int] = load(folder).tokenizer("ab")["input_ids"]
    return ids[:-2]


def test_without_settings_gemma_gets_bos_and_llama_does_not(tmp_path: Path) -> None:
    assert first_ids(make_folder(tmp_path / "gemma", gemma=True)) == [BOS]
    assert first_ids(make_folder(tmp_path / "llama")) == []


def test_tokenizer_config_decides_about_bos_if_it_says_anything(tmp_path: Path) -> None:
    gemma, llama = make_folder(tmp_path / "gemma", gemma=True), make_folder(tmp_path / "llama")
    say(gemma, add_bos_token=False)
    say(llama, add_bos_token=True)
    assert (first_ids(gemma), first_ids(llama)) == ([], [BOS])


def test_bos_is_not_added_twice(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gemma", gemma=True)
    load(folder).tokenizer.save_pretrained(folder)  # its tokenizer.json now adds it
    assert first_ids(folder) == [BOS]
    tokenizer = load(folder).tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert tokenizer(text, add_special_tokens=False)["input_ids"].count(BOS) == 1


def test_gemma_gets_its_turns_and_stops_at_their_end(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path / "gemma", gemma=True))
    talk = [
        {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi "},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"},
    ]  # fmt: skip
    text = model.tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    assert model.tokenizer(text, add_special_tokens=False)["input_ids"][:2] == [BOS, START]
    assert model.eos_token_ids == {EOS, END}
    with pytest.raises(TemplateError, match="must alternate"):
        model.tokenizer.apply_chat_template([talk[1], talk[1]], tokenize=False)


def test_a_template_that_came_along_stays(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gemma", gemma=True)
    (folder / "chat_template.jinja").write_text("mine")
    model = load(folder)
    assert model.tokenizer.chat_template == "mine"
    assert model.eos_token_ids == {EOS}
    assert load(make_folder(tmp_path / "llama")).tokenizer.chat_template is None
    assert "<end_of_turn>" in GEMMA_TEMPLATE


def test_an_added_token_without_a_row_becomes_plain_text(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama", extra=("<image>",))
    tokenizer = load(folder).tokenizer
    ids = tokenizer("a<image>b<eos>")["input_ids"]
    assert max(ids) < 260
    assert len(ids) == 1 + len("<image>") + 1 + 1
    assert ids[-1] == EOS
    assert tokenizer.decode(ids[:-1]) == "a<image>b"


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama", rows=200)
    with pytest.raises(ModelError, match=r"token ids up to 259, but the model's embedding has 200 rows.*another model"):
        load(folder)


def test_logits_beyond_the_vocabulary_are_cut_and_holes_masked(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama", rows=320)
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    moved = next(char for char, index in state["model"]["vocab"].items() if index == 255)
    state["model"]["vocab"][moved] = 299
    path.write_text(json.dumps(state))
    model = load(folder)
    holes = [255, *range(260, 299)]
    assert model.vocab_size == 300
    assert model.holes is not None
    assert model.holes.tolist() == holes
    logits = model.of_tokens(torch.ones(2, 320))
    assert logits.shape == (2, 300)
    assert logits.isneginf().nonzero().tolist() == [[row, hole] for row in range(2) for hole in holes]
    assert probe(model)  # -inf on both sides is no difference
    whole = load(make_folder(tmp_path / "whole", rows=320))
    assert (whole.holes, whole.vocab_size) == (None, 260)


def with_template(folder: Path, text: bytes | None) -> LoadedModel:
    file = folder.parent / "chat.jinja"
    if text is not None:
        file.write_bytes(text)
    source = find_source(str(folder), chat_template=file)
    return load_model(source, device=torch.device("cpu"), dtype=torch.float32)


def test_a_given_chat_template_takes_precedence(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gemma", gemma=True)
    messages = [{"role": "user", "content": "hi"}]
    own = with_template(folder, b"{% for m in messages %}[{{ m['content'] }}]{% endfor %}").tokenizer
    assert own.apply_chat_template(messages, tokenize=False) == "[hi]"
    picky = with_template(folder, b"{{ raise_exception('two messages, please') }}").tokenizer
    assert "please" in picky.chat_template, "what it thinks of messages is told to those who send them"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a\n{% for m in messages %}", r"chat\.jinja, line 2: .*endfor"),
        (b"\xff", "not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_chat_template_is_named(tmp_path: Path, text: bytes | None, words: str) -> None:
    folder = make_folder(tmp_path / "llama")
    with pytest.raises(ModelError, match=rf"--chat-template .*{words}"):
        with_template(folder, text)
