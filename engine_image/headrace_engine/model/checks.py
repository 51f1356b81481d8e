"""Checks of a model before it may answer: its config, the tensors loaded from its files, and their numbers.

transformers only warns: a tensor that is in no file gets random values, one that the model does not know is dropped.
In both cases the answers would be nonsense, so both are refused here, with file and tensor.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.device import dtype_name
from headrace_engine.errors import ModelError
from headrace_engine.model.weights import WeightSource, and_more

PAGEABLE_LAYERS = ("full_attention", "sliding_attention")
OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "speech_config")
# Constants in old checkpoints that models compute themselves.
HARMLESS = re.compile(r"rotary_emb\.inv_freq$|rope\.freqs$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$")
# GGUF tensors that change the rotation and are ignored by transformers' reader.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
READS_SCALING = ("gpt-oss",)


def refuse_unsupported(config: Any) -> None:
    """Refuse models that headrace cannot run, by config. `ModelError` names the architecture and what to do."""
    name = _architecture(config)
    _refuse_other_senses(config, name)
    text = config.get_text_config()
    _refuse_heads(text, name)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        raise ModelError(
            f"{name} (model_type {config.model_type}) is not a causal language model of transformers: headrace serves "
            "only models that continue a text. Use a model with a ...ForCausalLM class"
        )
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(
            f"{name} keeps a recurrent state beside its KV cache, which headrace does not page. Use a model with "
            "attention layers only"
        )
    kinds = set(getattr(text, "layer_types", None) or ()).difference(PAGEABLE_LAYERS)
    if kinds:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(kinds))}; headrace pages only "
            f"{' and '.join(PAGEABLE_LAYERS)} layers. Use a model with attention layers only"
        )
    _refuse_unbuildable(config, name)


def refuse_partial(source: WeightSource, module: Any, info: Mapping[str, Any]) -> None:
    """Refuse weights that do not match the model's parameters exactly. `info` is transformers' loading info."""
    name = type(module).__name__
    if wrong := sorted(info["mismatched_keys"]):
        tensor, held, wanted = wrong[0]
        raise ModelError(
            f"{source.file_of(tensor)}: tensor {tensor}{and_more(wrong)} has the shape {list(held)}, but by "
            f"{_config_of(source)} {name} needs {list(wanted)}: config and weights do not belong together; copy both "
            "again"
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{source.file_of('')} holds no tensor {missing[0]}{and_more(missing)}, which {name} needs; its values "
            f"would be random. Copy the complete weights, or correct {_config_of(source)}"
        )
    dropped = _dropped_from_gguf(source, module)
    extra = dropped + sorted(key for key in info["unexpected_keys"] if not HARMLESS.search(key))
    if extra:
        raise ModelError(
            f"{source.file_of(extra[0])} holds tensor {extra[0]}{and_more(extra)}, for which {name} has no place by "
            f"{_config_of(source)}: config and weights do not belong together; copy both again"
        )
    if info.get("error_msgs"):
        raise ModelError(
            f"{source.file_of('')}: {'; '.join(map(str, info['error_msgs']))[:300]}. Copy the weights again"
        )


def refuse_non_finite(source: WeightSource, module: Any) -> None:
    """Refuse weights with NaN or infinities: one such number makes every answer NaN."""
    for name, weight in module.named_parameters():
        if not weight.is_floating_point() or bool(weight.detach().sum(dtype=torch.float32).isfinite()):
            continue
        bad = int((~weight.detach().isfinite()).sum())  # the sum alone may overflow
        if bad:
            raise ModelError(
                f"{source.file_of(name)}: tensor {name} holds {bad} numbers that are NaN or infinite (of "
                f"{weight.numel()}, as {dtype_name(weight.dtype)}): copy the weights again; with "
                "--dtype float16 they may be too large for it: try bfloat16"
            )


def refuse_ignored_rope(source: WeightSource) -> None:
    """Refuse a GGUF file whose RoPE scaling transformers does not read: it would answer wrong."""
    gguf = source.gguf
    if gguf is None:
        return
    held = [tensor.name for tensor in gguf.tensors if tensor.name in ROPE_TENSORS]
    kind = str(gguf.metadata.get(f"{gguf.architecture}.rope.scaling.type") or "none")
    scaled = kind != "none" and gguf.metadata.get(f"{gguf.architecture}.rope.scaling.factor") not in (None, 1.0)
    if gguf.architecture not in READS_SCALING and (held or scaled):
        what = f"tensor {held[0]}" if held else f"{kind} RoPE scaling"
        raise ModelError(
            f"{gguf.path}: {what} changes the model's rotary embedding, and transformers does not read it from GGUF "
            "files, so answers would be wrong. Use the model's safetensors folder"
        )


def _architecture(config: Any) -> str:
    return str((getattr(config, "architectures", None) or [config.model_type])[0])


def _refuse_other_senses(config: Any, name: str) -> None:
    found = [part for part in OTHER_SENSES if getattr(config, part, None) is not None]
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if "mrope_section" in rope:
        found.append("M-RoPE")
    if found:
        raise ModelError(
            f"{name} is a multimodal model ({', '.join(found)}); headrace serves only text, with positions along one "
            "axis. Use the family's text-only model"
        )


def _refuse_heads(text: Any, name: str) -> None:
    heads, kv_heads = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return  # absent or given by layer: building the model reports errors
    if kv_heads < 1 or heads % kv_heads:
        raise ModelError(
            f"config.json of {name}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}: "
            "copy the model's own config.json again"
        )


def _refuse_unbuildable(config: Any, name: str) -> None:
    """Build the model on the meta device, so that errors show before gigabytes are read."""
    try:
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                copy.deepcopy(config), attn_implementation=IMPLEMENTATION, trust_remote_code=False
            )
    except Exception as error:  # a model's code raises anything
        if IMPLEMENTATION in str(error):
            raise ModelError(
                f"{name} does not take its attention from transformers' attention interface, so headrace cannot page "
                "its KV cache. Use another model"
            ) from error
        raise ModelError(
            f"config.json of {name} describes a model that cannot be built: {reason_of(error)}. Copy the model's own "
            "config.json again"
        ) from error


def reason_of(error: Exception) -> str:
    """An error of a library in one line."""
    said = " ".join(str(error).split())[:300].rstrip(".")
    # The text of a LookupError is only a name, such as "'factor'".
    return f"{type(error).__name__} {said}".strip() if isinstance(error, LookupError) or not said else said


def _config_of(source: WeightSource) -> str:
    return f"{source.gguf.path.name}'s metadata" if source.gguf is not None else "config.json"


def _dropped_from_gguf(source: WeightSource, module: Any) -> list[str]:
    """Tensors of a GGUF file that transformers' older reader would silently ignore."""
    if source.gguf is None:
        return []
    try:
        from transformers.modeling_gguf_pytorch_utils import (  # noqa: PLC0415  (internal: may move)
            TENSOR_PROCESSORS,
            TensorProcessor,
            get_gguf_hf_weights_map,
        )

        kind: Any = TENSOR_PROCESSORS.get(source.gguf.architecture, TensorProcessor)
        processor = kind(config=module.config.to_dict())
        known = get_gguf_hf_weights_map(module, processor)
    except (ImportError, NotImplementedError, AttributeError, TypeError):
        return []  # a newer reader, which reports unknown tensors
    return _unknown((tensor.name for tensor in source.gguf.tensors), known)


def _unknown(names: Iterable[str], known: Mapping[str, str]) -> list[str]:
    # Experts are split and joined while loading, under other names.
    return sorted(name for name in names if name not in known and "_exps" not in name)
