"""Output that follows a grammar: a JSON schema, any JSON object, a regular expression, or one of a few choices.

Built on llguidance. A grammar is compiled once, outside the event loop. Each request has its own copy, advanced by the
tokens that it accepts, which before each token gives the mask of those that may follow. Against hostile grammars there
are limits on size, on work for compiling and for each mask, and on memory.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from headrace_engine.sampling.grammar_spec import (
    GrammarError,
    GrammarSpec,
    definition_of,
    explained,
    one_line,
    reason_of,
)

KEPT_GRAMMARS = 64  # compiled ones, since the same schemas are used again and again
MADE_UP_EOS = "<|headrace end of grammar|>"
# Fuel limits work: about 20 ms to compile, 15 ms for one mask. A lexer state takes 1 to 2 kB.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=50_000,
    max_grammar_size=500_000, verbose_errors=False,
)  # fmt: skip


class Matcher:
    """The state of one request in its grammar."""

    __slots__ = ("_final", "core", "mask_words")

    def __init__(self, core: LLMatcher, *, mask_words: int, final: int | None) -> None:
        self.core = core
        self.mask_words = mask_words  # of 32 tokens each
        self._final = final

    @property
    def is_complete(self) -> bool:
        """Whether the output satisfies the grammar and nothing can follow."""
        return self.core.is_stopped() and not self.core.is_error()

    @property
    def final_token(self) -> int | None:
        """The token that ends the output here; None if the grammar is not satisfied, or the model has no such token."""
        return self._final if self.core.is_accepting() and not self.core.is_error() else None

    @property
    def problem(self) -> str | None:
        """Why the output cannot continue; None if it can."""
        if not self.core.is_error():
            return None
        return f"the output cannot follow its grammar any further: {reason_of(self.core)}"

    def accept(self, token: int) -> None:
        """Advance by `token`. Raises `GrammarError` if the grammar does not allow it."""
        if not self.core.consume_token(token):
            raise GrammarError(self.problem or f"token {token} does not follow the grammar")


class Grammar:
    """A compiled grammar. Thread-safe."""

    __slots__ = ("_final", "_mask_words", "_start")

    def __init__(self, start: LLMatcher, *, mask_words: int, final: int | None) -> None:
        self._start = start
        self._mask_words = mask_words
        self._final = final

    def start(self) -> Matcher:
        """A matcher for a new output."""
        return Matcher(self._start.deep_copy(), mask_words=self._mask_words, final=self._final)


def fill_masks(matchers: Sequence[Matcher], vocab_size: int) -> tuple[torch.Tensor, dict[int, str]]:
    """Masks of the tokens that may follow, and why some matchers cannot continue, by their index.

    Masks are bits `[matchers, words]` in int32, lowest bit first; all 0 for a matcher that cannot continue. The
    matchers must come from one compiler.
    """
    words = matchers[0].mask_words
    if words * 32 < vocab_size:
        raise ValueError(f"masks of {words * 32} tokens do not cover a vocabulary of {vocab_size}")
    masks = torch.zeros(len(matchers), words, dtype=torch.int32)
    if len(matchers) == 1:
        matchers[0].core.unsafe_compute_mask_ptr(masks.data_ptr(), words * 4)
    else:
        work = [(matcher.core, at) for at, matcher in enumerate(matchers)]
        _executor().unsafe_compute_mask_ptr(work, masks.data_ptr(), words * 4, len(matchers))
    stuck = {at: problem for at, matcher in enumerate(matchers) if (problem := matcher.problem) is not None}
    masks[list(stuck)] = 0  # llguidance allows EOS there
    return masks, stuck


@functools.cache
def _executor() -> LLExecutor:
    return LLExecutor()


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe. The first call reads the tokenizer, which takes a second."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = sorted(token for token in eos_token_ids if token < vocab_size)
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[str, Grammar] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile `spec`. Raises `GrammarError` naming what is wrong."""
        definition = definition_of(spec)
        with self._lock:
            vocabulary = self._vocabulary = self._vocabulary or self._read_vocabulary()
            kept = self._kept.get(definition)
            if kept is not None:
                self._kept.move_to_end(definition)
                return kept
        grammar = self._compile(definition, spec, vocabulary)
        with self._lock:
            self._kept[definition] = grammar
            if len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        return grammar

    def _compile(self, definition: str, spec: GrammarSpec, vocabulary: LLTokenizer) -> Grammar:
        start = LLMatcher(vocabulary, definition, log_level=0, limits=LIMITS)
        if start.is_error():
            raise GrammarError(f"{spec.kind}: {explained(reason_of(start), spec)}")
        grammar = Grammar(start, mask_words=-(-vocabulary.vocab_size // 32), final=self._eos[0] if self._eos else None)
        # The first mask shows here, and not in a step shared with others, whether any output is possible.
        probe = grammar.start()
        fill_masks([probe], self._vocab_size)
        if probe.core.is_error():
            raise GrammarError(f"{spec.kind}: {reason_of(probe.core)}")
        return grammar

    def _read_vocabulary(self) -> LLTokenizer:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise GrammarError(
                f"this model's tokenizer ({type(self._tokenizer).__name__}) is not a fast one, so its output cannot be "
                "held to a grammar: use a model with a tokenizer.json, or ask without response_format"
            )
        try:
            return self._made_from(backend)
        except Exception as error:  # the reader raises whatever the tokenizer's JSON makes it raise
            raise GrammarError(
                f"this model's tokenizer cannot be used with a grammar: {one_line(str(error))}. Ask without "
                "response_format, or use another model"
            ) from error

    def _made_from(self, backend: Tokenizer) -> LLTokenizer:
        size = max(self._vocab_size, max(backend.get_vocab(with_added_tokens=True).values()) + 1)
        if self._eos:
            return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=self._eos)
        # Grammars need an end token. A model without one gets an id that it cannot sample.
        extended = Tokenizer.from_str(backend.to_str())
        extended.add_special_tokens([MADE_UP_EOS])
        eos = extended.get_vocab(with_added_tokens=True)[MADE_UP_EOS]
        return LLTokenizer(extended.to_str(), n_vocab=max(size, eos + 1), eos_token=[eos])
