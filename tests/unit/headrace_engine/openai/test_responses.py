"""Answer bodies and chunks made from events, and the texts of tokens and their scores."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from headrace_core.scheduler.events import FinishReason
from headrace_engine.http.errors import ApiError
from headrace_engine.openai.chat_template import ChatTemplate
from headrace_engine.openai.prompts import Prompt
from headrace_engine.openai.responses import ChoiceWriter, ResponseSpec, whole_body
from headrace_engine.openai.scores import CompletionScores, in_chat, of_prompt
from headrace_engine.openai.streaming import raise_failure
from headrace_engine.openai.tools import ToolFormat, parser_for
from headrace_engine.outputs import Delta, Done, PromptScored, TokenScore
from headrace_engine.sampling.grammar import GrammarCompiler
from headrace_engine.sampling.grammar_spec import GrammarError, GrammarKind, GrammarSpec
from headrace_engine.sampling.logprobs import NOT_NUMBERS
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import sample
from headrace_engine.sampling.token_state import Row, TokenState
from headrace_engine.text.token_text import TokenTexts


@pytest.fixture(scope="session")
def texts(tokenizer: Any) -> TokenTexts:
    return TokenTexts(tokenizer)


@pytest.fixture(scope="session")
def sentencepiece() -> Any:
    """As Llama 2's: a mark for spaces, and tokens for single bytes."""
    vocab = {"\u2581a": 0, "b": 1, "\u2581": 2, "<0xC3>": 3, "<0xA9>": 4, "漢": 5}
    raw = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "</s>"})
    return made


def spec(**values: Any) -> ResponseSpec:
    given_: dict[str, Any] = {
        "id": "cmpl-1",
        "created": 7,
        "model": "m",
        "is_chat": False,
        "prompts": (Prompt((1, 2)),),
    }
    return ResponseSpec(**given_ | values)


def done(text: str = "", reason: FinishReason = FinishReason.STOP, **values: Any) -> Done:
    return Done(**{"text": text, "reason": reason, "num_output_tokens": 1} | values)


def score(token: int, logprob: float = -1.0, top: Sequence[tuple[int, float]] = ()) -> TokenScore:
    return TokenScore(token_id=token, logprob=logprob, rank=3, top=tuple(top))


@given(st.text(max_size=20))
def test_bytes_of_tokens_join_to_the_text(tokenizer: Any, text: str) -> None:
    spelled = TokenTexts(tokenizer)
    assert b"".join(spelled.bytes_of(token) for token in tokenizer(text)["input_ids"]) == text.encode()


def test_spellings(tokenizer: Any, texts: TokenTexts, sentencepiece: Any) -> None:
    first, second = tokenizer("é")["input_ids"]
    assert (texts.bytes_of(first), texts.text_of(first)) == (b"\xc3", "\ufffd")
    assert (texts.name_of(first), texts.name_of(second)) == ("bytes:\\xc3", "bytes:\\xa9")
    assert (texts.name_of(256), texts.is_special(256), texts.is_special(65)) == ("<eos>", True, False)
    assert texts.bytes_of(9999) == b""
    other = TokenTexts(sentencepiece)
    assert [other.bytes_of(token) for token in range(6)] == [b" a", b"b", b" ", b"\xc3", b"\xa9", "漢".encode()]


def test_offsets_count_characters_over_pieces(tokenizer: Any, texts: TokenTexts) -> None:
    ids = [*tokenizer("aé")["input_ids"], 256, *tokenizer("漢b")["input_ids"]]
    writer = CompletionScores(texts, top=0)
    pieces = [writer.write([(token, None)]) for token in ids]
    assert [offset for piece in pieces for offset in piece["text_offset"]] == [0, 1, 1, 2, 2, 2, 2, 3]
    assert pieces[0]["token_logprobs"] == pieces[0]["top_logprobs"] == [None]


def test_the_token_itself_is_always_among_the_best(texts: TokenTexts) -> None:
    best = [(65, -0.1), (66, -0.2), (67, -0.3)]
    names = [texts.name_of(token) for token in (65, 66, 67, 70)]
    write = lambda own, top: CompletionScores(texts, top=top).write([(own.token_id, own)])["top_logprobs"][0]  # noqa: E731
    assert write(score(70, -5.0, best), 2) == {names[0]: -0.1, names[1]: -0.2, names[3]: -5.0}
    assert write(score(65, -0.1, best), 2) == {names[0]: -0.1, names[1]: -0.2}
    assert write(score(70, -5.0, best), 0) == {names[3]: -5.0}
    by_id = of_prompt([(64, None), (70, score(70, -5.0, best))], texts, top=1)
    assert by_id[0] is None
    assert by_id[1] == {
        "70": {"logprob": -5.0, "rank": 3, "decoded_token": names[3]},
        "65": {"logprob": -0.1, "rank": 1, "decoded_token": names[0]},
    }
    (entry,) = in_chat([score(70, -5.0, best)], texts, top=2)["content"]
    assert entry["bytes"] == [ord(names[3])]
    assert [item["logprob"] for item in entry["top_logprobs"]] == [-0.1, -0.2]


def test_samples_share_prompt_and_scores(texts: TokenTexts) -> None:
    made = spec(prompts=(Prompt((65, 66), "bc"), Prompt((67,), "d")), samples=2, echo=True, logprobs=0, texts=texts)
    ends = [done(f"{at}", scores=(score(68),), token_ids=(68,), cached_tokens=at) for at in range(4)]
    scored = [PromptScored(scores=(None, score(66))), PromptScored(scores=(None,))]
    body = whole_body(made, ends, scored)
    assert [choice["text"] for choice in body["choices"]] == ["bc0", "bc1", "d2", "d3"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["logprobs"]["token_logprobs"] for choice in body["choices"]] == [[None, -1.0, -1.0]] * 2 + [
        [None, -1.0]
    ] * 2
    assert body["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip


def test_scoring_alone_shows_nothing_new(texts: TokenTexts) -> None:
    made = spec(prompts=(Prompt((65,), "b"),), echo=True, generates=False, logprobs=0, texts=texts, token_ids=True)
    end = done("x", scores=(), token_ids=(70,))
    body = whole_body(made, [end], [PromptScored(scores=(None,))])
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("b", "length", ())
    assert body["usage"]["completion_tokens"] == 0
    writer = ChoiceWriter(made, 0)
    first = writer.first(PromptScored(scores=(None,)))
    assert first is not None
    assert first["text"] == "b"
    assert [chunk["text"] for chunk in writer.more(end)] == [""]


@pytest.mark.parametrize(
    ("stop", "told"), [("END", "END"), (5, 5), (6, None), (None, None)],
)  # fmt: skip
def test_only_the_clients_own_stops_are_reported(stop: str | int | None, told: object) -> None:
    made = spec(stop_token_ids=frozenset({5}))
    (choice,) = ChoiceWriter(made, 0).more(done(stop_reason=stop))
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", told)


def test_a_stream_of_tools_skips_tokens_that_show_nothing() -> None:
    made = spec(is_chat=True, new_parser=lambda: parser_for(ToolFormat.HERMES), id="chatcmpl-ab")
    writer = ChoiceWriter(made, 0)
    assert writer.first(None) == {
        "index": 0, "logprobs": None, "finish_reason": None, "delta": {"role": "assistant", "content": ""},
    }  # fmt: skip
    assert writer.more(Delta(text="<tool_", token_ids=(1,))) == []
    assert writer.more(Delta(text='call>{"name": "f", "argum', token_ids=(1,)))[0]["delta"] == {
        "tool_calls": [
            {"index": 0, "id": "call_ab_0_0", "type": "function", "function": {"name": "f", "arguments": ""}}
        ]
    }
    last = writer.more(done('ents": {}}</tool_call>'))
    assert [chunk["delta"] for chunk in last] == [{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}]
    assert last[-1]["finish_reason"] == "tool_calls"
    cut = ChoiceWriter(made, 0).more(done("", FinishReason.LENGTH))
    assert (cut[-1]["delta"], cut[-1]["finish_reason"]) == ({}, "length")


def test_a_text_that_the_clients_constraints_make_impossible_is_a_400(tokenizer: Any) -> None:
    biased = SamplingParams(prompt_len=1, logit_bias=tuple((token, -math.inf) for token in range(257)))
    compiler = GrammarCompiler(tokenizer, vocab_size=257, eos_token_ids=[256])
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "a"))
    dead = TokenState(SamplingParams(prompt_len=1, grammar=grammar), (0,))
    assert dead.matcher is not None
    with pytest.raises(GrammarError):
        dead.matcher.accept(1)
    for state in (TokenState(biased, (0,)), dead):
        (sampled,) = sample(torch.zeros(1, 257), [Row(state, 3)])
        with pytest.raises(ApiError) as impossible:
            raise_failure(done(reason=FinishReason.ERROR, problem=sampled.problem))
        assert (impossible.value.status, impossible.value.body["error"]["code"]) == (400, "impossible_output")
    for other in (NOT_NUMBERS, None):
        with pytest.raises(ApiError) as broken:
            raise_failure(done(reason=FinishReason.ERROR, problem=other))
        assert broken.value.status == 500
    raise_failure(done())


def test_calls_beyond_the_limit_are_dropped() -> None:
    text = "".join(f'<tool_call>{{"name": "f{at}"}}</tool_call>' for at in range(3))
    for limit, names in ((None, ["f0", "f1", "f2"]), (1, ["f0"])):
        made = spec(is_chat=True, new_parser=lambda: parser_for(ToolFormat.HERMES), max_calls=limit)
        message = whole_body(made, [done(text)], [None])["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == names
        assert message["content"] is None


def test_names_in_a_template_are_those_of_its_code() -> None:
    class Named:
        chat_template = "{% generation %}{{ raise_exception('no tools here') }}tools{# tools #}{% if a.b %}{% endif %}"

        def get_chat_template(self, tools: object) -> str:
            return self.chat_template

    template = ChatTemplate(Named())
    assert not template.knows("tools")
    assert template.knows("a")
    Named.chat_template = "{%- if tools is not none %}x{% endif %}"
    assert template.knows("tools")
