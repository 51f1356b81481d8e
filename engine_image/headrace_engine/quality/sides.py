"""Builds an engine without a loop from the knobs of a side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from headrace_core.knobs.resolve import ConfigError, EngineConfig, resolve
from headrace_core.observations import ModelWidths, SideSpec
from headrace_core.scheduler.scheduler import Scheduler
from headrace_engine import device as devices
from headrace_engine.attention.kv_cache import LayerShape, block_bytes
from headrace_engine.engine import pick_attention, size_pool
from headrace_engine.errors import SettingsError
from headrace_engine.model.loading import LoadedModel
from headrace_engine.quality.offline import Offline, crowd


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSide:
    """A side with the config that its knobs resolve to on this device."""

    spec: SideSpec
    config: EngineConfig


def resolved(spec: SideSpec, device: torch.device) -> ResolvedSide:
    """The side resolved for this device. Raises `SettingsError` naming the flag."""
    try:
        config = resolve(spec.values, device=device.type)
    except ConfigError as error:
        flag = f"--{spec.label.lower()}"
        raise SettingsError("; ".join(f"{flag} {item.knob}: {item.message}" for item in error.problems)) from error
    return ResolvedSide(spec=spec, config=config)


def build(side: ResolvedSide, model: LoadedModel, layers: Mapping[int, LayerShape]) -> Offline:
    """An engine over a loaded model, with a new KV pool. Raises `SettingsError`."""
    spec, config = side.spec, side.config
    if spec.num_blocks is not None:
        one = block_bytes(layers, block_size=config.block_size, dtype=kv_dtype(side, model.dtype))
        config = replace(config, kv_cache_bytes=spec.num_blocks * one)
    pool, config = size_pool(model, dict(layers), config)
    if pool.dtype is not kv_dtype(side, model.dtype):
        raise SettingsError(
            f"--{spec.label.lower()} kv_cache_dtype={config.kv_cache_dtype}: the KV pool holds "
            f"{devices.dtype_name(pool.dtype)} anyway, so nothing would be compared"
        )
    scheduler = Scheduler(config, num_blocks=pool.num_blocks, max_model_len=int(config.max_model_len or 0))
    if spec.num_blocks is not None:
        crowd(scheduler)
    return Offline.over(model, pool, pick_attention(model, layers, config), scheduler=scheduler)


def dtype(side: ResolvedSide, device: torch.device) -> torch.dtype:
    """The number format that the side computes in."""
    return devices.pick_dtype(side.config.dtype, device, devices.cpu_features())


def kv_dtype(side: ResolvedSide, computed: torch.dtype) -> torch.dtype:
    """The number format of the side's KV pool; `computed` is that of the model."""
    return devices.pick_kv_dtype(side.config.kv_cache_dtype, computed)


def shape_of(model: LoadedModel) -> ModelWidths:
    """The sizes that determine how rounding errors grow: the longest sum is the widest input of any weight matrix."""
    widths = (weight.shape[-1] for weight in model.module.parameters() if weight.dim() > 1)
    return ModelWidths(layers=model.num_layers, width=max(widths))
