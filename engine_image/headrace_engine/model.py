"""Load a transformers causal LM whose attention is ours, with its tokenizer, and what the engine must know of both."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from headrace_engine.attention import IMPLEMENTATION
from headrace_engine.errors import ModelError
from headrace_engine.weights import Source

# These look at the largest position of a call, so one long prompt would change its neighbours' rotation.
CALL_DEPENDENT_ROPE = ("dynamic", "longrope")
PAGEABLE_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. `vocab_size` is the tokenizer's: logits beyond it belong to no token."""

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

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.module.parameters())


def load_model(source: Source, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load config, tokenizer and weights of `source`. Raises `ModelError` naming what is wrong and what to do."""
    config = _load_part(source, "config", lambda: AutoConfig.from_pretrained(**source.location))
    refuse_unsupported(config)
    tokenizer = _load_part(source, "tokenizer", lambda: AutoTokenizer.from_pretrained(**source.location))
    module = _load_part(source, "weights", lambda: _load_weights(source, config, dtype))
    return wrap_model(module.to(device), tokenizer, name=source.name, eos=_generation_eos(source))


def wrap_model(module: Any, tokenizer: Any, *, name: str, eos: frozenset[int] = frozenset()) -> LoadedModel:
    """Describe a loaded module and tokenizer."""
    text = module.config.get_text_config()
    module.eval().requires_grad_(requires_grad=False)
    known_eos = eos | _ids(text.eos_token_id) | _ids(tokenizer.eos_token_id)
    parameter = next(module.parameters())
    return LoadedModel(
        module=module,
        tokenizer=tokenizer,
        name=name,
        architecture=type(module).__name__,
        num_layers=text.num_hidden_layers,
        max_position=int(getattr(text, "max_position_embeddings", None) or 2**31),
        vocab_size=min(text.vocab_size, max(tokenizer.get_vocab().values()) + 1),
        eos_token_ids=known_eos,
        device=parameter.device,
        dtype=parameter.dtype,
        keeps_logits="logits_to_keep" in inspect.signature(module.forward).parameters,
    )


def refuse_unsupported(config: Any) -> None:
    """Refuse what the probe cannot see because it shows only beyond some length. Raises `ModelError`."""
    text = config.get_text_config()
    name = (getattr(config, "architectures", None) or [config.model_type])[0]
    rope = _rope_types(getattr(text, "rope_parameters", None) or {})
    bad_rope = sorted(rope.intersection(CALL_DEPENDENT_ROPE))
    if bad_rope:
        raise ModelError(
            f"{name} uses RoPE of type {bad_rope[0]}, whose rotation of one request depends on the longest position "
            "in the batch; headrace cannot serve it. Set rope_type to default, linear, yarn or llama3 in config.json, "
            "or use another model"
        )
    layers = set(getattr(text, "layer_types", None) or ()).difference(PAGEABLE_LAYERS)
    if layers:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(layers))}; headrace pages only "
            f"{' and '.join(PAGEABLE_LAYERS)} layers. Use a model with attention layers only"
        )


def _rope_types(parameters: Any) -> set[str]:
    # Flat, or one such dict for each layer type.
    groups = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return {str(group.get("rope_type") or group.get("type")) for group in groups}


def _load_weights(source: Source, config: Any, dtype: torch.dtype) -> Any:
    extra: dict[str, Any] = {}
    if source.gguf_file is not None:
        from transformers import GgufConfig  # noqa: PLC0415  (absent from older transformers)

        extra["quantization_config"] = GgufConfig(dequantize=True)
    # The choice of attention is stored in the config object: never share one between two models.
    return AutoModelForCausalLM.from_pretrained(
        **source.location, config=copy.deepcopy(config), attn_implementation=IMPLEMENTATION, dtype=dtype, **extra
    )


def _load_part(source: Source, part: str, load: Any) -> Any:
    where = source.where if source.gguf_file is None else f"{source.where}/{source.gguf_file}"
    try:
        return load()
    except ModelError:
        raise
    except Exception as error:  # a damaged file makes its reader raise anything, struct.error included
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(
            f"{where}: cannot load the {part}: {reason}. Check that it is a complete transformers causal language "
            "model with tokenizer, and that a hub id can be reached from here"
        ) from error


def _generation_eos(source: Source) -> frozenset[int]:
    try:
        generation = GenerationConfig.from_pretrained(source.where)
    except OSError:
        return frozenset()  # the file is optional
    return _ids(generation.eos_token_id)


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset({value})
