"""Assemble an engine: model, probe, KV pool, runner, scheduler, metrics, loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import EngineConfig
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.trace.history import History
from headrace_core.trace.record import RecordingScheduler
from headrace_engine import device as devices
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.kv_cache import KvPool, LayerShape, block_bytes, make_pool
from headrace_engine.attention.registry import needs_of, pick
from headrace_engine.errors import SettingsError
from headrace_engine.loop.engine_loop import EngineLoop
from headrace_engine.loop.probe import probe
from headrace_engine.loop.recording import open_recording
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.metrics.engine_metrics import EngineMetrics
from headrace_engine.model import peaks
from headrace_engine.model.generation import OPENAIS, SuggestedSampling
from headrace_engine.model.loading import LoadedModel, load_model
from headrace_engine.model.rope import check_rope_length, pin_rope
from headrace_engine.model.shape import model_shape
from headrace_engine.model.weights import WeightSource
from headrace_engine.version import VERSION

log = logging.getLogger(__name__)
CPU_CACHE_BYTES = 1 << 30
# Share of a GPU's memory for the activations of one step and for fragmentation, besides weights and KV.
GPU_RESERVE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A loaded engine. `config` includes computed values; `max_model_len` equals `config.max_model_len`."""

    model: LoadedModel
    config: EngineConfig
    runner: ModelRunner
    loop: EngineLoop
    metrics: EngineMetrics
    max_model_len: int
    started_at: float  # unix seconds
    sampling: SuggestedSampling = OPENAIS


def load(
    source: WeightSource, config: EngineConfig, *, device: torch.device
) -> tuple[LoadedModel, dict[int, LayerShape]]:
    """Load and probe the model of `source`, on the attention backend that `config` asks for. Raises `EngineError`."""
    dtype = devices.pick_dtype(config.dtype, device, devices.cpu_features())
    loaded = load_model(source, device=device, dtype=dtype)
    if config.max_model_len is not None:
        check_rope_length(loaded.module, config.max_model_len)
    layers = probe(
        loaded, kv_dtype=devices.pick_kv_dtype(config.kv_cache_dtype, loaded.dtype), block_size=config.block_size,
        backend=config.attention_backend,
    )  # fmt: skip
    return loaded, layers


def pick_attention(loaded: LoadedModel, layers: Mapping[int, LayerShape], config: EngineConfig) -> AttentionBackend:
    """The attention backend for a probed model under `config`. Raises `SettingsError` if it lacks a feature."""
    kv_dtype = devices.pick_kv_dtype(config.kv_cache_dtype, loaded.dtype)
    needs = needs_of(
        layers, device=loaded.device, dtype=loaded.dtype, kv_dtype=kv_dtype, block_size=config.block_size
    )  # fmt: skip
    return pick(config.attention_backend, needs)


def assemble(
    loaded: LoadedModel, layers: dict[int, LayerShape], config: EngineConfig, *, served_name: str, revision: str = "",
    slo: SloSet | None = None, record: Path | None = None, sampling: SuggestedSampling = OPENAIS,
) -> Engine:  # fmt: skip
    """An engine over a probed model, its loop not yet started. `record`: see `recording`. Raises `SettingsError`.

    `sampling` has the defaults for calls that do not set them.
    """
    peak = peaks.measure(loaded.device, loaded.dtype)  # before the KV pool takes the memory
    pool, config = size_pool(loaded, layers, config)
    max_model_len = int(config.max_model_len or 0)
    runner = ModelRunner(loaded, pool, pick_attention(loaded, layers, config))
    started_at = time.time()  # noqa: TID251  (reported, never compared with the engine's clock)
    metrics = EngineMetrics(served_name, slo, max_model_len=max_model_len)
    metrics.set_identity(
        version=VERSION, device=loaded.device.type, dtype=devices.dtype_name(loaded.dtype),
        pretend_gpu=devices.pretends_gpu(), started_at=started_at,
    )  # fmt: skip
    metrics.set_cache(config, pool.num_blocks)
    metrics.set_model(model_shape(loaded, layers, kv_dtype=pool.dtype), peak)
    history = History()
    scheduler = _scheduler(loaded, pool, config, max_model_len=max_model_len, record=record, history=history)
    loop = EngineLoop(scheduler, runner, metrics, history=history, revision=revision)
    metrics.watch_step(loop.step_age)
    return Engine(
        model=loaded, config=config, runner=runner, loop=loop, metrics=metrics, max_model_len=max_model_len,
        started_at=started_at, sampling=sampling,
    )  # fmt: skip


def _scheduler(
    loaded: LoadedModel,
    pool: KvPool,
    config: EngineConfig,
    *,
    max_model_len: int,
    record: Path | None,
    history: History,
) -> Scheduler:
    about: dict[str, Any] = {
        "num_blocks": pool.num_blocks,
        "max_model_len": max_model_len,
        "cache_namespace": f"{loaded.name}/{loaded.architecture}/{loaded.dtype}/{pool.dtype}",
        "observer": history,
    }
    if record is None:
        return Scheduler(config, **about)
    return RecordingScheduler(config, **about, write=open_recording(record))


def size_pool(loaded: LoadedModel, layers: dict[int, LayerShape], config: EngineConfig) -> tuple[KvPool, EngineConfig]:
    """Allocate the KV pool and pin the model's RoPE; return the pool, and `config` with the sizes it resulted in."""
    kv_dtype = devices.pick_kv_dtype(config.kv_cache_dtype, loaded.dtype)
    one = block_bytes(layers, block_size=config.block_size, dtype=kv_dtype)
    budget = config.kv_cache_bytes or _default_bytes(loaded, config)
    # Blocks beyond what all sequences use at full length would be wasted. Block 0 is for padding.
    longest = -(-min(config.max_model_len or loaded.max_position, loaded.max_position) // config.block_size)
    ceiling = config.ceilings.get("max_num_seqs", config.max_num_seqs)
    num_blocks = min(budget // one, longest * ceiling + 1)
    tokens = (num_blocks - 1) * config.block_size
    max_model_len = _max_model_len(loaded, config, tokens=tokens, budget=budget, one=one)
    pin_rope(loaded.module, max_model_len)
    pool = make_pool(layers, num_blocks=num_blocks, block_size=config.block_size, device=loaded.device, dtype=kv_dtype)
    return pool, replace(config, kv_cache_bytes=num_blocks * one, max_model_len=max_model_len)


def _default_bytes(loaded: LoadedModel, config: EngineConfig) -> int:
    if loaded.device.type != "cuda":
        return min(CPU_CACHE_BYTES, devices.memory_bytes() // 8)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(loaded.device)
    left = int(total * (config.gpu_memory_utilization - GPU_RESERVE)) - (total - free)
    if left <= 0:
        raise SettingsError(
            f"--gpu-memory-utilization {config.gpu_memory_utilization:g} leaves no memory for KV blocks: "
            f"{total - free} of {total} bytes are in use after loading the weights; "
            "raise it, free the GPU, or take a smaller model"
        )
    return left


def _max_model_len(loaded: LoadedModel, config: EngineConfig, *, tokens: int, budget: int, one: int) -> int:
    if tokens < max(2, config.block_size):
        raise SettingsError(
            f"--kv-cache-bytes {budget} holds {budget // one} blocks; at least 2 of {one} bytes are "
            f"needed: raise it to {2 * one}"
        )
    wanted = config.max_model_len
    if wanted is None:
        return min(loaded.max_position, tokens)
    if wanted > loaded.max_position:
        raise SettingsError(f"--max-model-len {wanted} exceeds the model's own limit {loaded.max_position}: lower it")
    if wanted > tokens:
        raise SettingsError(
            f"--max-model-len {wanted} exceeds the {tokens} tokens that the KV cache holds: lower it, or raise "
            f"--kv-cache-bytes (now {budget}) to {(-(-wanted // config.block_size) + 1) * one}"
        )
    return wanted
