"""Text streams in whole characters, each once, and equals the text decoded in one go."""

from collections.abc import Sequence
from typing import Any

import pytest
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from headrace_engine.model.demo import ensure_demo_model
from headrace_engine.text.detokenize import WINDOW, Detokenizer, TextStream

TEXT = "a é 漢字 👩‍🔬 ok"
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40)


def stream(tokenizer: Any, ids: Sequence[int], *, prompt: Sequence[int] = (), **options: Any) -> list[str]:
    text = TextStream(tokenizer, prompt, **{"stops": [], "incremental": True} | options)
    return [*(text.push(token) for token in ids), text.finish()]


def byte_tokenizer(*, strips: bool) -> Any:
    """Like Llama 2's (or Gemma's): `▁` for a space, `<0xE6>` for each byte that has no token of its own."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdeko", "▁a", "▁ok"]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("o", "k"), ("▁", "ok")]
    vocab["ok"] = len(vocab)
    raw = Tokenizer(BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.normalizer = normalizers.Replace(" ", "▁")
    if strips:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    raw.decoder = decoders.Sequence(steps)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "</s>"})
    return made


@pytest.fixture(params=["bytes", "byte-fallback", "byte-fallback, stripping"])
def any_tokenizer(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    return tokenizer if request.param == "bytes" else byte_tokenizer(strips="stripping" in request.param)


def test_characters_split_over_tokens_arrive_whole(any_tokenizer: Any) -> None:
    ids = any_tokenizer(TEXT)["input_ids"]
    pieces = stream(any_tokenizer, ids)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(ids) > len(TEXT)


@settings(deadline=None, max_examples=150)
@given(text=ANY_TEXT, prompt=ANY_TEXT)
def test_any_text_streams_without_partial_characters(tokenizer: Any, text: str, prompt: str) -> None:
    """A vocabulary of single bytes, and any Unicode string."""
    ids = tokenizer(text)["input_ids"]
    pieces = stream(tokenizer, ids, prompt=tokenizer(prompt)["input_ids"])
    assert "".join(pieces) == text
    held = 0
    for token, piece in zip(ids, pieces, strict=False):
        held = 0 if piece else held + 1
        assert held <= 3 or "\ufffd" in text, token


@settings(deadline=None, max_examples=100)
@example(text="字", said="👩漢", strips=False)  # six tokens from the end begin inside a character
@given(text=ANY_TEXT, said=ANY_TEXT, strips=st.booleans())
def test_any_text_streams_with_byte_fallback(text: str, said: str, strips: bool) -> None:
    tokenizer = BYTE_FALLBACK[strips]
    prompt = tokenizer(said)["input_ids"]
    ids = tokenizer(text)["input_ids"]
    whole = tokenizer.decode([*prompt, *ids])[len(tokenizer.decode(prompt)) :]
    assert "".join(stream(tokenizer, ids, prompt=prompt)) == whole
    assert "".join(stream(tokenizer, ids, prompt=prompt, incremental=False)) == whole


BYTE_FALLBACK = {strips: byte_tokenizer(strips=strips) for strips in (True, False)}


def test_a_leading_space_is_kept_after_a_prompt() -> None:
    tokenizer = BYTE_FALLBACK[True]
    ids = tokenizer("ok ok")["input_ids"]
    assert "".join(stream(tokenizer, ids, prompt=tokenizer("a")["input_ids"])) == " ok ok"


@pytest.mark.parametrize("missing", [1, 2, 3])
@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("before", ["", "ab", "é漢"])
def test_output_that_ends_inside_a_character_ends_with_one_replacement(
    any_tokenizer: Any, missing: int, incremental: bool, before: str
) -> None:
    prompt = any_tokenizer("ok")["input_ids"]
    ids = any_tokenizer(before + "👩")["input_ids"][:-missing]
    if "▁" in any_tokenizer.get_vocab() and before == "ab":
        before = any_tokenizer.decode([*prompt, *any_tokenizer(before)["input_ids"]])[len("ok") :]
    text = "".join(stream(any_tokenizer, ids, prompt=prompt, incremental=incremental))
    assert text.lstrip(" ") == before.lstrip(" ") + "\ufffd"


def test_invalid_bytes_do_not_hold_the_stream_back(any_tokenizer: Any) -> None:
    byte = any_tokenizer("é")["input_ids"][-1]
    detokenizer = Detokenizer(any_tokenizer, any_tokenizer("ok")["input_ids"])
    pieces = [detokenizer.push([byte]) for _ in range(40)]
    assert len("".join(pieces)) >= 27
    assert detokenizer.flush().count("\ufffd") <= 1


def test_characters_after_bad_bytes_are_right_again(tokenizer: Any) -> None:
    byte = tokenizer("é")["input_ids"][1]
    ids = [byte] * 30 + tokenizer("漢字 ok")["input_ids"]
    assert "".join(stream(tokenizer, ids)) == "\ufffd" * 30 + "漢字 ok"


@pytest.fixture(scope="module")
def straddling() -> Any:
    """Tokens that hold the end of one character and the beginning of the next."""
    bytes_of = {char: at for at, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    spelled = [bytes_char(byte) for byte in "漢".encode()]
    vocab = bytes_of | {spelled[1] + spelled[2] + spelled[0]: 256}
    raw = Tokenizer(BPE(vocab=vocab, merges=[]))
    raw.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw)


def bytes_char(byte: int) -> str:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    found: str = bytes_to_unicode()[byte]  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("count", [3, 12, 300])
def test_tokens_across_the_borders_of_characters_show_no_half_ones(straddling: Any, count: int) -> None:
    first, second, third = (straddling.convert_tokens_to_ids(bytes_char(byte)) for byte in "漢".encode())
    ids = [first, *[256] * count, second, third]
    pieces = stream(straddling, ids)
    assert "".join(pieces) == "漢" * (count + 1)
    assert not any("\ufffd" in piece for piece in pieces)
    shown = 0
    for at, piece in enumerate(pieces[:-1]):
        shown += len(piece)
        assert at - shown <= 10, "the stream continues"


def test_at_once_and_piece_by_piece_agree(any_tokenizer: Any) -> None:
    ids = any_tokenizer(TEXT)["input_ids"]
    whole = TextStream(any_tokenizer, ids[:3], stops=[], incremental=False)
    assert [whole.push(token) for token in ids] == [""] * len(ids)
    assert whole.finish() == "".join(stream(any_tokenizer, ids, prompt=ids[:3]))


def test_special_tokens_show_no_text(any_tokenizer: Any) -> None:
    eos = any_tokenizer.eos_token_id
    prompt, ids = any_tokenizer("a")["input_ids"], any_tokenizer("ok")["input_ids"]
    plain = "".join(stream(any_tokenizer, [*ids, *ids], prompt=prompt))
    assert "".join(stream(any_tokenizer, [eos, *ids, eos, eos, *ids, eos], prompt=[*prompt, eos, eos])) == plain


class Counting:
    """A tokenizer that counts the ids that it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.added_tokens_decoder = tokenizer.added_tokens_decoder
        self.decoded = 0

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        self.decoded += len(ids)
        text: str = self.inner.decode(ids, **options)
        return text


@pytest.mark.parametrize(
    "text", ["the quick brown fox " * 1000, "漢字" * 3000, "\n" * 20_000], ids=["words", "han", "lines"]
)
def test_the_work_is_linear_in_the_length(any_tokenizer: Any, text: str) -> None:
    counting = Counting(any_tokenizer)
    ids = any_tokenizer(text)["input_ids"]
    assert "".join(stream(counting, ids)).lstrip() == text.lstrip()
    assert counting.decoded <= len(ids) * 2 * WINDOW


@pytest.mark.parametrize("kind", ["special", "invalid", "straddling"])
def test_the_work_is_linear_for_any_kind_of_token(tokenizer: Any, straddling: Any, kind: str) -> None:
    bad = tokenizer("é")["input_ids"][1]
    base, ids = {
        "special": (tokenizer, [tokenizer.eos_token_id] * 20_000),
        "invalid": (tokenizer, [bad] * 20_000),
        "straddling": (straddling, [256] * 20_000),
    }[kind]
    counting = Counting(base)
    stream(counting, ids)
    assert counting.decoded <= len(ids) * 5 * WINDOW


def test_a_megabyte_at_once_is_decoded_once(tokenizer: Any) -> None:
    counting = Counting(tokenizer)
    ids = tokenizer("x" * 1_000_000)["input_ids"]
    text = TextStream(counting, [], stops=[], incremental=False)
    for token in ids:
        text.push(token)
    assert counting.decoded == 0
    assert text.finish() == "x" * 1_000_000
    assert counting.decoded == 1_000_000


@pytest.mark.model
def test_a_real_vocabulary_streams_what_it_decodes() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(ensure_demo_model(print))
    text = "Grüße aus 東京 👩‍🔬🏳️‍🌈!\n\n```python\nprint('naïve')\n```\t→ ∑ αβγ \u200b end" * 5
    ids = tokenizer(text)["input_ids"]
    pieces = stream(tokenizer, ids, prompt=ids[:9])
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


# Stop strings in a stream of tokens


def test_a_stop_string_over_several_tokens_never_shows(tokenizer: Any) -> None:
    text = TextStream(tokenizer, [], stops=["</s1>"], incremental=True)
    shown = []
    for token in tokenizer("before</s1>after")["input_ids"]:
        shown.append(text.push(token))
        if text.stopped:
            break
    assert "".join([*shown, text.finish()]) == "before"
    assert text.stop == "</s1>"


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_of_split_characters(tokenizer: Any, incremental: bool, include: bool) -> None:
    """The tokens end inside UTF-8 characters."""
    ids = tokenizer("ab👩漢c")["input_ids"]
    pieces = stream(tokenizer, ids, stops=["👩漢"], incremental=incremental, include_stop=include)
    assert "".join(pieces) == ("ab👩漢" if include else "ab")


def test_a_stop_string_counts_only_after_min_tokens(tokenizer: Any) -> None:
    ids = tokenizer("..x.x.")["input_ids"]
    assert "".join(stream(tokenizer, ids, stops=["x"])) == ".."
    assert "".join(stream(tokenizer, ids, stops=["x"], min_tokens=2)) == ".."
    assert "".join(stream(tokenizer, ids, stops=["x"], min_tokens=3)) == "..x."
    assert "".join(stream(tokenizer, ids, stops=["x"], min_tokens=5)) == "..x.x."
    assert "".join(stream(tokenizer, ids, stops=[".x"], min_tokens=3)) == "..x"


def test_the_rest_of_a_text_can_complete_a_stop_string(tokenizer: Any) -> None:
    ids = tokenizer("ab👩")["input_ids"][:-1]
    text = TextStream(tokenizer, [], stops=["b\ufffd"], incremental=True)
    assert "".join(text.push(token) for token in ids) == "a"
    assert text.finish() == ""
    assert text.stop == "b\ufffd"
