"""From what a person typed after --a or --b to an engine without a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from headrace_core.knobs.resolve import ConfigError, EngineConfig, resolve
from headrace_core.knobs.table import KNOB_BY_NAME, KnobKind, KnobValue
from headrace_core.scheduler.scheduler import Scheduler
from headrace_engine import device as devices
from headrace_engine.attention.kv_cache import LayerShape, block_bytes
from headrace_engine.engine import pick_attention, size_pool
from headrace_engine.errors import SettingsError
from headrace_engine.model.loading import LoadedModel
from headrace_engine.quality.offline import Offline, crowd
from headrace_engine.quality.rounding import ModelWidths

NUM_BLOCKS = "num_blocks"
TRUTHS: Mapping[str, bool] = {"true": True, "on": True, "false": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One side. `num_blocks` counts KV blocks, the one for padding included, in place of kv_cache_bytes.

    Who states it wants preemptions: admission is told to expect short outputs then.
    """

    label: str
    about: str
    config: EngineConfig
    num_blocks: int | None = None


def parse(label: str, typed: str, *, device: str) -> Spec:
    """`typed` is `knob=value,…`, spelled as flags or as fields; empty for the defaults. Raises `SettingsError`."""
    flag = f"--{label.lower()}"
    values: dict[str, KnobValue] = {}
    num_blocks: int | None = None
    parts = [part.strip() for part in typed.split(",") if part.strip()]
    for part in parts:
        name, equals, text = part.partition("=")
        name, text = name.strip().removeprefix("--").replace("-", "_"), text.strip()
        if not equals:
            raise SettingsError(f"{flag} {part}: knob=value is expected, such as prefill_chunk_size=32")
        if name in values or (name == NUM_BLOCKS and num_blocks is not None):
            raise SettingsError(f"{flag}: {name} is given twice")
        if name == NUM_BLOCKS:
            num_blocks = _blocks(flag, text)
        else:
            values[name] = _value(flag, name, text)
    try:
        config = resolve(values, device=device)
    except ConfigError as error:
        raise SettingsError("; ".join(f"{flag} {item.knob}: {item.message}" for item in error.problems)) from error
    return Spec(label=label, about=", ".join(parts) or "defaults", config=config, num_blocks=num_blocks)


def _blocks(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise SettingsError(f"{flag} {NUM_BLOCKS}={text}: a whole number of at least 2 is expected")
    return int(text)


def _value(flag: str, name: str, text: str) -> KnobValue:
    knob = KNOB_BY_NAME.get(name)
    if knob is None:
        known = ", ".join(sorted([*KNOB_BY_NAME, NUM_BLOCKS]))
        raise SettingsError(f"{flag} {name}: is not a knob of this engine; known are {known}")
    try:
        match knob.kind:
            case KnobKind.INT:
                return int(text)
            case KnobKind.FLOAT:
                return float(text)
            case KnobKind.BOOL:
                return TRUTHS[text.lower()]
            case KnobKind.CHOICE:
                return text
    except (ValueError, KeyError) as error:
        raise SettingsError(f"{flag} {name}={text}: is not of kind {knob.kind}") from error


def build(spec: Spec, model: LoadedModel, layers: Mapping[int, LayerShape]) -> Offline:
    """An engine of its own pool over a loaded model. Raises `SettingsError`."""
    config = spec.config
    if spec.num_blocks is not None:
        one = block_bytes(layers, block_size=config.block_size, dtype=kv_dtype(spec, model.dtype))
        config = replace(config, kv_cache_bytes=spec.num_blocks * one)
    pool, config = size_pool(model, dict(layers), config)
    if pool.dtype is not kv_dtype(spec, model.dtype):
        raise SettingsError(
            f"--{spec.label.lower()} kv_cache_dtype={config.kv_cache_dtype}: the KV pool holds "
            f"{devices.dtype_name(pool.dtype)} all the same, so nothing would be compared"
        )
    scheduler = Scheduler(config, num_blocks=pool.num_blocks, max_model_len=int(config.max_model_len or 0))
    if spec.num_blocks is not None:
        crowd(scheduler)
    return Offline.over(model, pool, pick_attention(model, layers, config), scheduler=scheduler)


def dtype(spec: Spec, device: torch.device) -> torch.dtype:
    """What the side computes in."""
    return devices.pick_dtype(spec.config.dtype, device, devices.cpu_features())


def kv_dtype(spec: Spec, computed: torch.dtype) -> torch.dtype:
    """What the side keeps keys and values in."""
    return devices.pick_kv_dtype(spec.config.kv_cache_dtype, computed)


def shape_of(model: LoadedModel) -> ModelWidths:
    """What decides how rounding grows: the longest sum is the widest input of any weight matrix."""
    widths = (weight.shape[-1] for weight in model.module.parameters() if weight.dim() > 1)
    return ModelWidths(layers=model.num_layers, width=max(widths))
