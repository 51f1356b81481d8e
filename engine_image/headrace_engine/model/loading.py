"""Loads a transformers causal LM with our attention and its tokenizer, and collects what the engine needs of both."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.errors import ModelError
from headrace_engine.model.checks import (
    reason_of,
    refuse_ignored_rope,
    refuse_non_finite,
    refuse_partial,
    refuse_unsupported,
)
from headrace_engine.model.generation import NOTHING_SAID, GenerationFile, ids, read_generation
from headrace_engine.model.tokenizer import load_tokenizer, turn_ends
from headrace_engine.model.weights import WeightSource

T = TypeVar("T")
WHAT_TO_DO = {
    "config": "Copy the model's own config.json again",
    "tokenizer": "Copy the model's tokenizer files again",
    "weights": "Check that it is a complete transformers causal language model",
    "gguf": "Use another GGUF file of the model, or its safetensors folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. `vocab_size` is the tokenizer's: logits beyond it are padding."""

    module: Any
    tokenizer: Any
    name: str
    architecture: str
    num_layers: int
    max_position: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype
    keeps_logits: bool  # forward() takes logits_to_keep
    holes: torch.Tensor | None = None  # ids below vocab_size without a token
    generation: GenerationFile = NOTHING_SAID

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits `[rows, vocab_size]` from `[rows, padded]`: padding cut off, -inf for ids without a token."""
        cut = logits[:, : self.vocab_size]
        return cut if self.holes is None else cut.index_fill(1, self.holes, float("-inf"))


def load_model(source: WeightSource, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load config, tokenizer and weights of `source`. Raises `ModelError` naming what is wrong and what to do."""
    refuse_ignored_rope(source)
    config = _load_part(source, "config", lambda: AutoConfig.from_pretrained(**source.location))
    refuse_unsupported(config)
    rows = config.get_text_config().vocab_size
    kind = config.get_text_config().model_type
    tokenizer = _load_part(source, "tokenizer", lambda: load_tokenizer(source, model_type=kind, rows=rows))
    module, info = _load_part(source, "weights", lambda: _load_weights(source, config, dtype))
    refuse_partial(source, module, info)
    refuse_non_finite(source, module)
    generation = read_generation(source)
    eos = generation.eos_token_ids | turn_ends(tokenizer, source.gguf)
    return replace(wrap_model(module.to(device), tokenizer, name=source.name, eos=eos), generation=generation)


def wrap_model(module: Any, tokenizer: Any, *, name: str, eos: frozenset[int] = frozenset()) -> LoadedModel:
    """Describe a loaded module and tokenizer."""
    text = module.config.get_text_config()
    module.eval().requires_grad_(requires_grad=False)
    known_eos = eos | ids(text.eos_token_id) | ids(tokenizer.eos_token_id)
    parameter = next(module.parameters())
    known = set(tokenizer.get_vocab().values())
    vocab_size = min(text.vocab_size, max(known) + 1)
    holes = sorted(set(range(vocab_size)) - known)
    return LoadedModel(
        module=module,
        tokenizer=tokenizer,
        name=name,
        architecture=type(module).__name__,
        num_layers=text.num_hidden_layers,
        max_position=int(getattr(text, "max_position_embeddings", None) or 2**31),
        vocab_size=vocab_size,
        eos_token_ids=frozenset(token for token in known_eos if 0 <= token < vocab_size),
        device=parameter.device,
        dtype=parameter.dtype,
        keeps_logits="logits_to_keep" in inspect.signature(module.forward).parameters,
        holes=torch.tensor(holes, device=parameter.device) if holes else None,
    )


def dequantizing(source: WeightSource) -> dict[str, Any]:
    """Arguments of `from_pretrained` for reading a GGUF file's weights dequantized; empty for other files."""
    if source.gguf is None:
        return {}
    from transformers import GgufConfig  # noqa: PLC0415  (absent from older transformers)

    return {"quantization_config": GgufConfig(dequantize=True)}


def _load_weights(source: WeightSource, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The module, and transformers' loading info on missing, unexpected and mismatched tensors."""
    with _no_report():
        # The choice of attention is stored in the config object, so two models must not share one.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            **source.location, config=copy.deepcopy(config), attn_implementation=IMPLEMENTATION, dtype=dtype,
            use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **dequantizing(source),
        )  # fmt: skip
    return loaded[0], loaded[1]


@contextlib.contextmanager
def _no_report() -> Iterator[None]:
    """Silence transformers' table of missing tensors: `refuse_partial` reports them, with file and advice."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def _load_part(source: WeightSource, part: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except ModelError:
        raise
    except Exception as error:  # a damaged file makes its reader raise anything, struct.error included
        reason = reason_of(error)
        if source.is_hub:
            raise ModelError(
                f"{source.where}: cannot load the {part} from the model hub (there is no such folder here): {reason}. "
                "Check the name, the network and, for a gated model, HF_TOKEN; or download the model elsewhere and "
                "give its folder"
            ) from error
        advice = WHAT_TO_DO["gguf" if source.gguf is not None else part]
        where = f"{source.where}/config.json" if part == "config" and source.gguf is None else source.file_of("")
        raise ModelError(f"{where}: cannot load the {part}: {reason}. {advice}") from error
