"""The start-up probe: does this architecture run on our attention, and does it compute the same?

Some architectures bypass the attention interface or do not pass it everything; they would answer nonsense without any
error. So the probe learns each layer's KV shape from a first forward, checks each layer's own mask against its window
at distances that no short forward reaches, then compares a chunked forward of two requests in scattered blocks with
the model's own eager attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from headrace_core.knobs.table import AUTO
from headrace_core.scheduler.events import ScheduledSeq
from headrace_engine.attention.base import AttentionBackend
from headrace_engine.attention.features import Feature
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.attention.kv_cache import LayerShape, make_pool
from headrace_engine.attention.registry import needs_of, pick
from headrace_engine.device import dtype_name
from headrace_engine.errors import ModelError
from headrace_engine.loop.runner import ModelRunner
from headrace_engine.model.loading import LoadedModel

OBSERVED = "headrace_observed"
BLOCK = 4  # tokens in a block, if the backend supports blocks this small
LENGTHS = (11, 7)
TABLES = ((5, 1, 3), (2, 6))
# Request, first position, end: chunks without and with history beside decodes, and two decodes alone.
STEPS = (((0, 0, 6), (1, 0, 3)), ((1, 3, 4), (0, 6, 10)), ((1, 4, 5), (0, 10, 11)), ((1, 5, 7),))
# Root mean square error relative to the spread of the reference logits. Correct attention gives 5e-7, 2e-3, 2e-2.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
# Positions of queries and distances of keys at which a mask is evaluated.
FAR = (1 << 20, (1 << 20) + 77)
DISTANCES = (-1, 0, 1, *(1 << power for power in range(1, 20)))
MaskFunction = Callable[..., Any]


@dataclass(slots=True)
class ProbeCalls:
    """The calls of the attention interface in one forward, by layer index."""

    layers: list[int] = field(default_factory=list)
    shapes: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    masks: dict[int, torch.Tensor | None] = field(default_factory=dict)
    asked: list[tuple[torch.Tensor, MaskFunction]] = field(default_factory=list)  # masks and their functions


def probe(
    model: LoadedModel, *, kv_dtype: torch.dtype | None = None, block_size: int = BLOCK, backend: str = AUTO
) -> dict[int, LayerShape]:
    """The KV shape of each layer, after a trial on the backend that will serve the model.

    `kv_dtype` is the number format of KV blocks, by default the model's; `backend` is the knob's value. Raises
    `ModelError` naming an architecture that cannot be served, `SettingsError` if the backend cannot run it.
    """
    calls = _observe(model)
    _check_calls(model, calls)
    _check_masks(model, calls)
    stored = kv_dtype or model.dtype
    needs = needs_of(
        calls.shapes, device=model.device, dtype=model.dtype, kv_dtype=stored, block_size=block_size
    )  # fmt: skip
    error = _error(model, calls.shapes, stored, backend=pick(backend, needs), block_size=block_size)
    allowed = max(TOLERANCE[model.dtype], TOLERANCE[stored])
    if not error <= allowed:
        raise ModelError(
            f"{model.architecture} computes different logits on paged attention (error {error:.2g} of the logits' "
            f"spread, at most {allowed:g} allowed{_stored(model, stored)}), so headrace cannot serve it. Use another "
            "model, or report the architecture"
        )
    return calls.shapes


def _observe(model: LoadedModel) -> ProbeCalls:
    """One plain causal forward that records each layer's shapes, window and mask."""
    calls = ProbeCalls()

    # `attention_mask` must be named so: some models pass it as a keyword.
    def note(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **given: Any) -> Any:
        index = module.layer_idx
        calls.layers.append(index)
        calls.shapes[index] = LayerShape(
            kv_heads=key.shape[1], key_dim=key.shape[3], value_dim=value.shape[3],
            features=_features(grouped=query.shape[1] != key.shape[1], given=given),
        )  # fmt: skip
        calls.windows[index] = given.get("sliding_window")
        calls.masks[index] = attention_mask
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    def remember(*, q_length: int, kv_length: int, mask_function: MaskFunction, **_: Any) -> torch.Tensor:
        mask = torch.zeros(1, 1, q_length, kv_length, dtype=torch.bool, device=model.device)
        calls.asked.append((mask, mask_function))
        return mask

    AttentionInterface.register(OBSERVED, note)
    AttentionMaskInterface.register(OBSERVED, remember)
    with _attention(model, OBSERVED), torch.inference_mode():
        try:
            ids, positions = _row(model, 0, LENGTHS[0]), torch.arange(LENGTHS[0], device=model.device)[None]
            model.module(input_ids=ids, position_ids=positions, use_cache=False, headrace_step=None)
        except (TypeError, KeyError, ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
            raise _cannot_run(model, error) from error
    return calls


def _features(*, grouped: bool, given: Mapping[str, object]) -> frozenset[Feature]:
    """The features that a layer needs of its kernel, judged by the arguments of its call."""
    asked = {
        Feature.GROUPED_QUERIES: grouped,
        Feature.WINDOW: given.get("sliding_window") is not None,
        Feature.SOFTCAP: given.get("softcap") is not None,
        Feature.SINKS: given.get("s_aux") is not None,
    }
    return frozenset(feature for feature, is_asked in asked.items() if is_asked)


def _cannot_run(model: LoadedModel, error: Exception) -> ModelError:
    return ModelError(
        f"{model.architecture} cannot run on headrace's attention: {error}. Use another model, or report the "
        "architecture"
    )


def _check_calls(model: LoadedModel, calls: ProbeCalls) -> None:
    if sorted(calls.layers) != list(range(model.num_layers)):
        raise ModelError(
            f"{model.architecture} bypasses transformers' attention interface ({len(calls.layers)} calls in "
            f"{model.num_layers} layers), so headrace cannot page its KV cache. Use another model"
        )
    types = getattr(model.module.config.get_text_config(), "layer_types", None) or []
    lost = [index for index, kind in enumerate(types) if kind == "sliding_attention" and calls.windows[index] is None]
    if lost:
        raise ModelError(
            f"{model.architecture} does not hand its sliding window to the attention interface (layer {lost[0]}), so "
            "headrace would attend too far. Use another model"
        )


def _check_masks(model: LoadedModel, calls: ProbeCalls) -> None:
    """Refuse a layer whose mask is not causal with the layer's window: our attention supports no other."""
    for index, mask in sorted(calls.masks.items()):
        asked = next((function for made, function in calls.asked if made is mask), None)
        if asked is not None and not _says(asked, calls.windows[index]):
            window = calls.windows[index]
            kept = "all keys before it" if window is None else f"the last {window} keys"
            raise ModelError(
                f"layer {index} of {model.architecture} needs a different mask: on headrace's attention a query sees "
                f"{kept}. Use another model, or report the architecture"
            )


def _says(mask: MaskFunction, window: int | None) -> bool:
    """Whether `mask` lets a query see exactly the keys at distance 0 to `window` - 1."""
    distances = DISTANCES if window is None else (*DISTANCES, window - 1, window, window + 1)
    for query in FAR:
        for distance in distances:
            expected = distance >= 0 and (window is None or distance < window)
            try:
                allowed = mask(torch.tensor(0), torch.tensor(0), torch.tensor(query), torch.tensor(query - distance))
            except (TypeError, IndexError, RuntimeError, AttributeError):
                return False  # it looks at more than positions
            if bool(allowed) != expected:
                return False
    return True


def _error(
    model: LoadedModel, shapes: dict[int, LayerShape], stored: torch.dtype, *, backend: AttentionBackend,
    block_size: int,
) -> float:  # fmt: skip
    """The error of our logits for two chunked, interleaved requests against eager attention, relative to their spread.

    The median over rows, as a near tie between experts can fall either way in one row. Uses the smallest blocks that
    the backend supports, up to `block_size`, so that a short text fills several.
    """
    sizes = (size for size in range(BLOCK, block_size) if size in backend.abilities.block_sizes)
    block = next(sizes, max(BLOCK, block_size))
    # Lengthened by twice the difference, texts begin, cross and end larger blocks just as they do blocks of 4.
    more = 2 * (block - BLOCK)
    steps = [[(request, start and start + more, end + more) for request, start, end in step] for step in STEPS]
    rows = [_row(model, request, length + more) for request, length in enumerate(LENGTHS)]
    pool = make_pool(shapes, num_blocks=8, block_size=block, device=model.device, dtype=stored)
    runner = ModelRunner(model, pool, backend)
    try:
        ours = torch.cat([runner.logits([_part(part, rows[part[0]]) for part in step]) for step in steps])
    except (TypeError, KeyError, ValueError, RuntimeError, IndexError) as error:
        raise _cannot_run(model, error) from error
    whole = [_plain_logits(model, row) for row in rows]
    plain = torch.stack([whole[request][end - 1] for step in steps for request, _, end in step])
    _check_finite(model, ours, plain=plain, stored=stored)
    tokens = plain[0].isfinite()
    difference = (ours - plain)[:, tokens].float().pow(2).mean(-1).sqrt()
    return float((difference / plain[:, tokens].float().std(-1).clamp(min=1e-12)).median())


def _check_finite(model: LoadedModel, ours: torch.Tensor, *, plain: torch.Tensor, stored: torch.dtype) -> None:
    """Refuse NaN and +inf (a broken model, or too small a number format); -inf marks ids without a token."""
    broken = [
        logits.isnan().any() or logits.isposinf().any() or not logits.isfinite().any() for logits in (plain, ours)
    ]
    if any(broken):
        where = "" if broken[0] else _stored(model, stored)
        raise ModelError(
            f"{model.architecture} answers NaN in {dtype_name(model.dtype)}{where}: its numbers are too large for that "
            "format. Serve it with --dtype bfloat16 or float32 (and --kv-cache-dtype auto)"
        )


def _stored(model: LoadedModel, stored: torch.dtype) -> str:
    return "" if stored == model.dtype else f" with KV blocks in {dtype_name(stored)}"


def _plain_logits(model: LoadedModel, row: torch.Tensor) -> torch.Tensor:
    with _attention(model, "eager"), torch.inference_mode():
        logits: torch.Tensor = model.module(input_ids=row, use_cache=False).logits
    return model.of_tokens(logits[0])


def _part(part: tuple[int, int, int], row: torch.Tensor) -> ScheduledSeq:
    request, start, end = part
    ids = row[0, start:end].tolist()
    return ScheduledSeq(
        request_id=str(request), start=start, token_ids=tuple(ids), block_table=TABLES[request], samples=True,
        is_prefill=True,
    )  # fmt: skip


def _row(model: LoadedModel, request: int, length: int) -> torch.Tensor:
    """Token ids of one made-up request, `[1, length]`."""
    steps = torch.arange(length, device=model.device) + 1
    return (steps * (7919 + 104_729 * request) % model.vocab_size)[None]


@contextlib.contextmanager
def _attention(model: LoadedModel, name: str) -> Iterator[None]:
    model.module.set_attn_implementation(name)
    try:
        yield
    finally:
        model.module.set_attn_implementation(IMPLEMENTATION)
