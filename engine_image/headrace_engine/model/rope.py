"""RoPE that looks at the longest position of a call: pinned to the server's model length, or refused.

transformers chooses `longrope`'s factors and `dynamic`'s base anew in each call, by the largest position in it, so one
long prompt would turn its neighbours' keys. Pinned, they are what transformers takes for a text of `max_model_len`
tokens, whoever runs beside it: `longrope` has its short factors where max_model_len is at most the length that the
model was first trained for and its long ones above; `dynamic` does not scale up to max_position_embeddings, and beyond
it is refused. Whatever the type says, the outcome is checked: a position's rotation must not move with its neighbours.
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
    """Raise `ModelError` with both numbers where the model's RoPE would scale with the text below `max_model_len`."""
    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    for _, part in _rotaries(module):
        if limit is not None and max_model_len > limit and any("dynamic" in kind for kind in _kinds(part).values()):
            raise ModelError(
                f"{type(module).__name__} uses dynamic RoPE, whose rotation grows with the longest text beyond "
                f"{limit} tokens (max_position_embeddings), so requests would disturb each other; --max-model-len "
                f"{max_model_len} is above that: set it to at most {limit}, or give the model yarn RoPE in config.json"
            )


def pin_rope(module: Any, max_model_len: int) -> None:
    """Fix every rotation of `module` for texts of at most `max_model_len` tokens. May be called again. `ModelError`."""
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
    """RoPE type by layer type; by None where all layers share it. What the model came with, also once pinned."""
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
                continue  # an unusual signature, but nothing that depends on the call
            raise ModelError(
                f"{type(module).__name__} uses {kind} RoPE in a form that headrace cannot pin ({name}: {error}). "
                "Use another model, or report the architecture"
            ) from error
        if any(not torch.equal(one, other[: len(own)]) for one, other in zip(alone, together, strict=True)):
            limit = _original_length(module)
            advice = f"set --max-model-len to at most {limit}, or use another model" if limit else "use another model"
            raise ModelError(
                f"{type(module).__name__} turns a request's positions by the longest text beside it ({kind} RoPE, "
                f"{name}) at max_model_len {max_model_len}: {advice}"
            )


def _original_length(module: Any) -> int | None:
    parameters = getattr(module.config.get_text_config(), "rope_parameters", None) or {}
    found = parameters.get("original_max_position_embeddings")
    return int(found) if found else None
