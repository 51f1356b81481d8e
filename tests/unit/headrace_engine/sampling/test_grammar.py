"""Output held to a grammar: what is allowed, when it is complete, what is refused, and what hostile input costs."""

import itertools
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from headrace_engine.model.demo import ensure_demo_model
from headrace_engine.sampling.grammar import Grammar, GrammarCompiler, fill_masks
from headrace_engine.sampling.grammar_spec import DEAD_END, MAX_BYTES, GrammarError, GrammarKind, GrammarSpec
from headrace_engine.sampling.params import SamplingParams
from headrace_engine.sampling.sampler import sample
from headrace_engine.sampling.token_state import Row, TokenState

EOS = 256


def spec(kind: str, value: Any = None) -> GrammarSpec:
    return GrammarSpec(GrammarKind(kind), value)


@pytest.fixture
def compiler(tokenizer: Any) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=257, eos_token_ids={EOS})


def sentencepiece(*, strips: bool) -> Any:
    """Tokens as Gemma has them (or Llama 2, which strips a leading space): `▁` for a space, `<0xE6>` for a byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *'{}[]:,."0123456789aenrtuz']
    vocab = {piece: at for at, piece in enumerate([*pieces, "▁a", "tr", "tru", "true"])}
    merges = [("▁", "a"), ("t", "r"), ("tr", "u"), ("tru", "e")]
    raw = Tokenizer(BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence(steps)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"})
    return made


def generate(
    grammar: Grammar, vocab_size: int, *, seed: str = "0", steps: int = 400, temperature: float = 1.0, **options: Any
) -> tuple[list[int], str]:
    """Sample from random logits under `grammar`, as the loop does; returns the tokens and how it ended."""
    state = TokenState(
        SamplingParams(prompt_len=1, grammar=grammar, temperature=temperature, seed=seed, **options), (0,)
    )
    noise = torch.Generator().manual_seed(random.Random(seed).randrange(2**31))
    tokens: list[int] = []
    for index in range(steps):
        result = sample(torch.randn(1, vocab_size, generator=noise), [Row(state, index)])[0]
        if result.problem is not None:
            return tokens, str(result.problem)
        tokens.append(result.token)
        try:
            state.accept(result.token)
        except GrammarError as error:
            return tokens, str(error)
        if state.is_complete:
            return tokens, "complete"
    return tokens, "length"


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_followed_greedily_and_sampled(
    tokenizer: Any, compiler: GrammarCompiler, temperature: float
) -> None:
    grammar = compiler.compile(spec("json_schema", PERSON))
    for seed in range(8):
        tokens, ended = generate(grammar, 257, seed=str(seed), temperature=temperature)
        assert ended == "complete"
        value = json.loads(tokenizer.decode(tokens, skip_special_tokens=True))
        assert set(value) == {"name", "age", "tags", "ok"}
        assert 0 <= value["age"] <= 120
        assert len(value["tags"]) <= 3
        assert isinstance(value["ok"], bool)


def test_json_object_is_any_object_and_nothing_else(tokenizer: Any, compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(spec("json_object"))
    done = 0
    for seed in range(12):
        tokens, ended = generate(grammar, 257, seed=str(seed), steps=600)
        if ended == "complete":
            done += 1
            assert isinstance(json.loads(tokenizer.decode(tokens, skip_special_tokens=True)), dict)
        else:
            assert ended == "length"
    assert done > 3


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        (spec("regex", r"[ab]{2}-[0-9]"), {f"{x}{y}-{z}" for x in "ab" for y in "ab" for z in "0123456789"}),
        (spec("regex", "^(yes|no)$"), {"yes", "no"}),
        (spec("choice", ("yes", "no", "nope")), {"yes", "no", "nope"}),
        (spec("choice", ['say "hi"', "a\\b\nc", "漢字 👩"]), {'say "hi"', "a\\b\nc", "漢字 👩"}),
    ],
)
def test_regex_and_choice_match_the_whole_output(
    tokenizer: Any, compiler: GrammarCompiler, asked: GrammarSpec, texts: set[str]
) -> None:
    grammar = compiler.compile(asked)
    found = set()
    for seed in range(40):
        tokens, ended = generate(grammar, 257, seed=str(seed))
        assert ended == "complete"
        found.add(tokenizer.decode(tokens, skip_special_tokens=True))
    assert found <= texts
    assert len(found) >= min(len(texts), 3)


def test_what_can_end_and_can_go_on_ends_with_eos(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(spec("choice", ("no", "nope")))
    runs = [generate(grammar, 257, seed=str(seed))[0] for seed in range(60)]
    assert {run[-1] == EOS for run in runs} == {True, False}
    assert all(EOS not in run[:-1] for run in runs)


@pytest.mark.parametrize("strips", [True, False])
def test_sentencepiece_vocabularies_are_understood(strips: bool) -> None:
    tokenizer = sentencepiece(strips=strips)
    vocab_size = len(tokenizer)
    compiler = GrammarCompiler(tokenizer, vocab_size=vocab_size, eos_token_ids={tokenizer.eos_token_id})
    texts = set()
    for seed in range(20):
        tokens, ended = generate(compiler.compile(spec("choice", ("true", "an ant", "é"))), vocab_size, seed=str(seed))
        assert ended == "complete"
        context = tokenizer("0", add_special_tokens=False)["input_ids"]
        texts.add(tokenizer.decode([*context, *tokens], skip_special_tokens=True)[len(tokenizer.decode(context)) :])
    assert texts == {"true", "an ant", "é"}
    tokens, ended = generate(compiler.compile(spec("json_schema", PERSON)), vocab_size)
    assert ended == "complete"
    json.loads(tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.mark.model
def test_a_real_vocabulary_of_49152_tokens() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(ensure_demo_model(print))
    compiler = GrammarCompiler(tokenizer, vocab_size=49152, eos_token_ids={tokenizer.eos_token_id})
    for seed in range(4):
        tokens, ended = generate(compiler.compile(spec("json_schema", PERSON)), 49152, seed=str(seed))
        assert ended == "complete"
        assert set(json.loads(tokenizer.decode(tokens, skip_special_tokens=True))) == set(PERSON["properties"])


def test_rows_with_and_without_a_grammar_share_a_step(compiler: GrammarCompiler) -> None:
    digits, letters = compiler.compile(spec("regex", "[0-9]+")), compiler.compile(spec("regex", "[a-z]+"))
    logits = torch.randn(4, 257, generator=torch.Generator().manual_seed(1))
    states = [TokenState(SamplingParams(prompt_len=1, grammar=each), (0,)) for each in (digits, None, letters, digits)]
    rows = [Row(state, 0) for state in states]
    together = sample(logits, rows)
    assert [sample(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)] == together
    assert together[1].token == int(logits[1].argmax())
    assert together[0].token != together[3].token or torch.equal(logits[0], logits[3])


def test_a_mask_moves_nothing_and_requests_do_not_share_their_place(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(spec("choice", ("ab", "ac")))
    one, other = grammar.start(), grammar.start()
    first = fill_masks([one], 257)[0]
    one.accept(ord("a") - 33)
    assert torch.equal(fill_masks([other], 257)[0], first)
    assert not torch.equal(fill_masks([one], 257)[0], first)
    assert torch.equal(fill_masks([one, other], 257)[0], torch.cat([fill_masks([one], 257)[0], first]))


# Ends that must be defined


@pytest.fixture
def without_z() -> Any:
    """A vocabulary that cannot write every text: `z` is missing."""
    pieces = [chr(code) for code in range(ord("a"), ord("z"))]
    raw = Tokenizer(BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=[], byte_fallback=False))
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw)
    made.add_special_tokens({"eos_token": "<eos>"})
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_dead_end_has_a_defined_end(without_z: Any, temperature: float) -> None:
    """A grammar that cannot advance ends the request with a message, and nothing is NaN."""
    compiler = GrammarCompiler(without_z, vocab_size=26, eos_token_ids={25})
    grammar = compiler.compile(spec("regex", "abz"))
    tokens, ended = generate(grammar, 26, temperature=temperature)
    assert tokens == [0, 1]
    assert ended == f"the output cannot follow its grammar any further: {DEAD_END}"
    # Beside one that can go on and one that follows none, wherever it stands.
    stuck = TokenState(SamplingParams(prompt_len=1, grammar=grammar, temperature=temperature), (0,))
    stuck.accept(0)
    stuck.accept(1)
    fine = TokenState(SamplingParams(prompt_len=1, grammar=compiler.compile(spec("regex", "a+"))), (0,))
    free = TokenState(SamplingParams(prompt_len=1, temperature=temperature), (0,))
    for order in itertools.permutations([Row(stuck, 2), Row(fine, 0), Row(free, 0)]):
        by_state = dict(zip((row.state for row in order), sample(torch.randn(3, 26), order), strict=True))
        assert str(by_state[stuck].problem) == ended
        assert by_state[fine].token == 0
        assert by_state[free].problem is None


def test_a_grammar_that_allows_no_output_is_refused_at_once(without_z: Any) -> None:
    compiler = GrammarCompiler(without_z, vocab_size=26, eos_token_ids={25})
    with pytest.raises(GrammarError, match=f"regex: {DEAD_END}"):
        compiler.compile(spec("regex", "z+"))


def test_a_bias_against_all_that_the_grammar_allows_has_a_defined_end(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(spec("choice", ("a",)))
    tokens, ended = generate(grammar, 257, logit_bias=((ord("a") - 33, float("-inf")),))
    assert tokens == []
    assert ended == "no token is possible at output position 0: logit_bias and the grammar together exclude all"


def test_a_complete_output_ends_even_before_min_tokens(compiler: GrammarCompiler) -> None:
    more = {"min_tokens": 20, "stop_token_ids": frozenset({EOS})}
    assert generate(compiler.compile(spec("choice", ("ab",))), 257, **more)[1] == "complete"
    # Here only EOS is left, and it is masked: the grammar wins.
    optional = compiler.compile(spec("regex", "ab?"))
    for seed in range(6):
        tokens, ended = generate(optional, 257, seed=str(seed), **more)
        assert (tokens, ended) == ([ord("a") - 33, ord("b") - 33], "complete"), "goes on where it can"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_that_may_end_ends_where_nothing_else_is_left(compiler: GrammarCompiler, temperature: float) -> None:
    """`ab?` after the a: the end is masked by min_tokens, the b by its bias. The grammar is satisfied, so it ends."""
    optional = compiler.compile(spec("regex", "ab?"))
    tokens, ended = generate(
        optional, 257, temperature=temperature, min_tokens=20, stop_token_ids=frozenset({EOS}),
        logit_bias=((ord("b") - 33, float("-inf")),),
    )  # fmt: skip
    assert (tokens, ended) == ([ord("a") - 33, EOS], "complete")


def test_a_token_that_does_not_follow_is_an_error(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(spec("choice", ("ab",))).start()
    with pytest.raises(GrammarError, match="cannot follow its grammar"):
        matcher.accept(ord("x") - 33)
    assert not matcher.is_complete
    assert matcher.final_token is None
    with pytest.raises(GrammarError):
        matcher.accept(ord("a") - 33)


def test_a_model_without_an_end_token_can_follow_what_ends_by_itself(tokenizer: Any) -> None:
    compiler = GrammarCompiler(tokenizer, vocab_size=256, eos_token_ids=())
    assert generate(compiler.compile(spec("choice", ("ab", "cd"))), 256)[1] == "complete"
    assert generate(compiler.compile(spec("regex", "a+")), 256, steps=20)[1] == "length"


# What is refused, and how


REFUSED = [
    (spec("json_schema", {"type": "object", "properties": {"a": {"not": {}}}}), r"keyword not .*#/properties/a"),
    (spec("json_schema", {"if": {}, "then": {}}), "keywords if, then cannot be enforced \\(at #\\)"),
    (spec("json_schema", {"type": "array", "uniqueItems": True}), "uniqueItems"),
    (spec("json_schema", {"oneOf": [{"type": "string"}, {"maxLength": 3}]}), "x-guidance"),
    (spec("json_schema", {"type": "wombat"}), "wombat"),
    (spec("json_schema", {"type": "string", "format": "wombat"}), "wombat"),
    (spec("json_schema", {"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (spec("json_schema", {"$ref": "#/$defs/missing"}), "missing"),
    (spec("json_schema", {"$ref": "http://example.com/schema"}), "example.com"),
    (spec("json_schema", {"enum": []}), "Unsatisfiable"),
    (spec("json_schema", False), "nothing satisfies"),
    (spec("json_schema", {"type": "string", "minLength": 5, "maxLength": 2}), "minLength"),
    (spec("json_schema", {"x-guidance": {"lenient": True}, "not": {}}), "keyword not"),
    (spec("json_schema", '{"type":'), "not JSON"),
    (spec("json_schema", "[1]"), "not list"),
    (spec("json_schema", None), "not NoneType"),
    (spec("json_schema", {"minimum": float("nan")}), "not JSON"),
    (spec("json_schema", {"const": {1, 2}}), "not JSON"),
    (spec("json_schema", {"const": "\ud800"}), "surrogate"),
    (spec("regex", "a("), "unclosed group"),
    (spec("regex", r"(a)\1"), "backreferences"),
    (spec("regex", ""), "non-empty string"),
    (spec("regex", None), "non-empty string"),
    (spec("regex", "[^\\s\\S]"), DEAD_END),
    (spec("choice", ()), "list of at least one"),
    (spec("choice", ("a", "")), "non-empty string"),
    (spec("choice", "yes"), "list of at least one"),
    (spec("choice", (1,)), "list of at least one"),
]


@pytest.mark.parametrize(("asked", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_enforced_is_refused_by_name(compiler: GrammarCompiler, asked: GrammarSpec, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as refused:
        compiler.compile(asked)
    assert str(refused.value).startswith(f"{asked.kind}: ")
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


# Made when used: an error report would print them.
HOSTILE: dict[str, Callable[[], GrammarSpec]] = {
    "400 deep": lambda: spec("json_schema", nested(400)),
    "20000 deep": lambda: spec("json_schema", nested(20_000)),
    "50000 brackets": lambda: spec("json_schema", "[" * 50_000),
    "a long constant": lambda: spec("json_schema", {"enum": ["x" * MAX_BYTES]}),
    "a long regex": lambda: spec("regex", "a" * (MAX_BYTES + 1)),
    "20000 parentheses": lambda: spec("regex", "(" * 20_000 + ")" * 20_000),
    "long choices": lambda: spec("choice", ["x" * 1000 + str(at) for at in range(100)]),
    "3 to the 12th": lambda: spec(
        "json_schema",
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{at}_{way}": {"type": "string"}}} for way in range(3)]}
                for at in range(12)
            ]
        },
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_bounded_time(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(GrammarError) as refused:
        compiler.compile(HOSTILE[name]())
    assert len(str(refused.value)) < 500


EXPENSIVE = [
    spec("regex", "a{1000000000}"),
    spec("json_schema", {
        "type": "object",
        "properties": {f"p{at}": {"type": "string", "pattern": "^[a-z]{1,50}$"} for at in range(1000)},
    }),
    spec("regex", "(.*a.{30}){3}"), spec("regex", "(x+x+)+y"), spec("regex", "((a{1,100}){1,100}){1,100}"),
    spec("regex", "(" + "|".join(f".*a.{{{at}}}" for at in range(1, 20)) + ")b"),
    spec("json_schema", {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}),
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("asked", EXPENSIVE, ids=range(len(EXPENSIVE)))
def test_an_expensive_grammar_runs_or_ends_with_a_message(compiler: GrammarCompiler, asked: GrammarSpec) -> None:
    _, ended = generate(compiler.compile(asked), 257, steps=80)
    assert ended in ("complete", "length") or "cannot follow its grammar" in ended


def test_json_is_not_padded_without_end(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(spec("json_object")).start()
    blank = 220  # Ġ, the space of a byte-level vocabulary
    matcher.accept(ord("{") - 33)
    for _ in range(20):
        matcher.accept(blank)
    with pytest.raises(GrammarError):
        matcher.accept(blank)


def test_a_slow_tokenizer_is_refused_with_a_message() -> None:
    class SlowTokenizer:
        pass

    compiler = GrammarCompiler(SlowTokenizer(), vocab_size=10, eos_token_ids={1})
    with pytest.raises(GrammarError, match=r"SlowTokenizer.* not a fast one"):
        compiler.compile(spec("json_object"))


def test_a_tokenizer_of_an_unknown_kind_is_refused_with_a_message() -> None:
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocab={"a": 0, "b": 1}, merges=[])))
    compiler = GrammarCompiler(made, vocab_size=2, eos_token_ids=())
    with pytest.raises(GrammarError, match="this model's tokenizer cannot be used with a grammar"):
        compiler.compile(spec("json_object"))


def test_compiling_is_thread_safe_and_kept(compiler: GrammarCompiler) -> None:
    found: list[Any] = []

    def work(at: int) -> None:
        for _ in range(10):
            grammar = compiler.compile(spec("choice", (f"a{at % 3}", "b")))
            found.append(generate(grammar, 257, seed=str(at))[1])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["complete"] * 60
    asked = spec("choice", ("a0", "b"))
    assert compiler.compile(asked) is compiler.compile(asked)
