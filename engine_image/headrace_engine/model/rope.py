"""RoPE types that depend on the longest position in a call: pinned to the server's model length, or refused.

In each call, transformers chooses `longrope`'s factors and `dynamic`'s base by the largest position in it, so one long
prompt would change the rotation of its neighbours' keys. Pinned, they are those that transformers uses for a text of
`max_model_len` tokens, in any batch: `longrope` uses its short factors if max_model_len is at most the model's original
training length, else its long ones; `dynamic` does not scale up to max_position_embeddings, and is refused beyond it.
For every type the result is checked: the rotation of a position must not depend on its neighbours.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headrace_engine.errors import ModelError

BY_CALL = ("dynamic", "longrope")
FROZEN = "default"  # transformers recomputes nothing for this type
SOME = (0, 1, 5)


def check_rope_length(module: Any, max_model_len: int) -> None:
    """Raise `ModelError`, naming both lengths, if the model's RoPE would scale with texts up to `max_model_len`."""
    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    for _, part in _rotaries(module):
        if limit is not None and max_model_len > limit and any("dynamic" in kind for kind in _kinds(part).values()):
            raise ModelError(
                f"{type(module).__name__} uses dynamic RoPE, whose rotation grows with the longest text beyond "
                f"{limit} tokens (max_position_embeddings), so requests would affect each other; --max-model-len "
                f"{max_model_len} is above that: set it to at most {limit}, or give the model yarn RoPE in config.json"
            )


def pin_rope(module: Any, max_model_len: int) -> None:
    """Fix every rotation of `module` for texts up to `max_model_len` tokens. Can be repeated. Raises `ModelError`."""
    check_rope_length(module, max_model_len)
    for name, part in _rotaries(module):
        kinds = _kinds(part)
        if any(_is_by_call(kind) for kind in kinds.values()):
            _set_kinds(part, kinds)
            for layer_type in kinds:
                _rotate(part, (max_model_len - 1,), layer_type)  # transformers' own choice for this length
            _set_kinds(part, {layer: FROZEN if _is_by_call(kind) else kind for layer, kind in kinds.items()})
            part.headrace_kinds = kinds
        _refuse_if_neighbours_matter(module, name, part=part, max_model_len=max_model_len)


def _rotaries(module: Any) -> Iterator[tuple[str, Any]]:
    return ((name, part) for name, part in module.named_modules() if hasattr(part, "rope_type"))


def _kinds(part: Any) -> dict[str | None, str]:
    """The model's original RoPE type by layer type, even once pinned; the key is None if all layers share it."""
    found = getattr(part, "headrace_kinds", None) or part.rope_type
    return dict(found) if isinstance(found, Mapping) else {None: found}


def _set_kinds(part: Any, kinds: Mapping[str | None, str]) -> None:
    part.rope_type = kinds[None] if None in kinds else dict(kinds)


def _is_by_call(kind: str) -> bool:
    return any(word in kind for word in BY_CALL)


def _rotate(part: Any, positions: tuple[int, ...], layer_type: str | None) -> list[torch.Tensor]:
    """Cosines and sines `[positions, ...]`."""
    device = next(part.buffers()).device
    named = {"layer_type": layer_type} if "layer_type" in inspect.signature(part.forward).parameters else {}
    with torch.inference_mode():
        out = part(torch.zeros(1, device=device), torch.tensor([positions], device=device), **named)
    return [one[0] for one in (out if isinstance(out, tuple) else (out,))]


def _refuse_if_neighbours_matter(module: Any, name: str, *, part: Any, max_model_len: int) -> None:
    own = tuple(position for position in SOME if position < max_model_len)
    for layer_type, kind in _kinds(part).items():
        try:
            alone = _rotate(part, own, layer_type)
            together = _rotate(part, (*own, max_model_len - 1), layer_type)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, StopIteration) as error:
            if not _is_by_call(kind):
                continue  # an unusual signature, but not a type that depends on the call
            raise ModelError(
                f"{type(module).__name__} uses {kind} RoPE in a form that headrace cannot pin ({name}: {error}). "
                "Use another model, or report the architecture"
            ) from error
        if any(not torch.equal(one, other[: len(own)]) for one, other in zip(alone, together, strict=True)):
            limit = _original_length(module)
            advice = f"set --max-model-len to at most {limit}, or use another model" if limit else "use another model"
            raise ModelError(
                f"{type(module).__name__} rotates a request's positions by the longest text in its batch ({kind} RoPE, "
                f"{name}) at max_model_len {max_model_len}: {advice}"
            )


def _original_length(module: Any) -> int | None:
    parameters = getattr(module.config.get_text_config(), "rope_parameters", None) or {}
    found = parameters.get("original_max_position_embeddings")
    return int(found) if found else None
