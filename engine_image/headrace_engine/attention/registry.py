"""The attention backends by name, and the choice of one for a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headrace_core.knobs.table import ATTENTION_BACKENDS, AUTO, KNOB_BY_NAME
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.features import AttentionNeeds, Feature
from headrace_engine.attention.kv_cache import LayerShape
from headrace_engine.attention.sdpa import SdpaBackend
from headrace_engine.errors import SettingsError

KNOB = KNOB_BY_NAME["attention_backend"]
_KNOWN: Mapping[str, AttentionBackend] = {backend.name: backend for backend in (SdpaBackend(),)}
# The knob's choices determine the backends and their order: fastest first.
BACKENDS: tuple[AttentionBackend, ...] = tuple(_KNOWN[name] for name in ATTENTION_BACKENDS)


def needs_of(
    layers: Mapping[int, LayerShape], *, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype,
    block_size: int,
) -> AttentionNeeds:  # fmt: skip
    """The needs of a model with these layers under these settings."""
    features = {feature for layer in layers.values() for feature in layer.features}
    if any(layer.key_dim != layer.value_dim for layer in layers.values()):
        features.add(Feature.VALUE_SIZE)
    if kv_dtype != dtype:
        features.add(Feature.KV_DTYPE)
    return AttentionNeeds(
        device=device.type,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        head_sizes=frozenset(size for layer in layers.values() for size in (layer.key_dim, layer.value_dim)),
        features=frozenset(features),
    )


def pick(wanted: str, needs: AttentionNeeds) -> AttentionBackend:
    """The backend that `wanted` names; for `auto`, the first that lacks nothing. Raises `SettingsError`."""
    able = [backend for backend in BACKENDS if not backend.abilities.lacks(needs)]
    if wanted == AUTO:
        if able:
            return able[0]
        lacking = "; ".join(f"{backend.name} lacks {_lacks(backend, needs)}" for backend in BACKENDS)
        raise SettingsError(
            f"{KNOB.flag} {AUTO}: no backend can run this model as configured: {lacking}. Use another model or device"
        )
    chosen = next((backend for backend in BACKENDS if backend.name == wanted), None)
    if chosen is None:
        known = ", ".join((AUTO, *(backend.name for backend in BACKENDS)))
        raise SettingsError(f"{KNOB.flag} {wanted}: there is no such backend; known are {known}")
    if chosen not in able:
        others = " or ".join((AUTO, *(backend.name for backend in able)))
        raise SettingsError(
            f"{KNOB.flag} {wanted}: this backend lacks {_lacks(chosen, needs)}, which this model as configured needs; "
            f"use {KNOB.flag} {others}"
        )
    return chosen


def _lacks(backend: AttentionBackend, needs: AttentionNeeds) -> str:
    return ", ".join(backend.abilities.lacks(needs))
