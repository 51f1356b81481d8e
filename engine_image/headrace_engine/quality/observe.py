"""Run the sides of a request one after another, with only one model in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import transformers

from headrace_core.observations import Number, ObservationRequest, Observations, Observed, Side
from headrace_engine import device as devices
from headrace_engine.attention.kv_cache import LayerShape
from headrace_engine.engine import load
from headrace_engine.model.loading import LoadedModel
from headrace_engine.model.weights import WeightSource, find_source
from headrace_engine.quality import sides
from headrace_engine.quality.passes import Ended, observe
from headrace_engine.quality.reference import load_plain, observe_plain
from headrace_engine.quality.samples import TokenizedText, shuffled, tokenize
from headrace_engine.quality.sides import ResolvedSide

REFERENCE = "transformers"


class ObservationProgress(Protocol):
    """Reports the progress of a run."""

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """A side of `total` parts begins; call the returned function after each part."""
        ...


def observe_all(request: ObservationRequest, progress: ObservationProgress) -> Observations:
    """Observe every side, then the reference. Raises `EngineError`."""
    torch.set_num_threads(request.threads or devices.default_threads())
    device = devices.pick_device(request.device)
    run = _Run(request, find_source(request.model), device, progress)
    resolved = [sides.resolved(spec, device) for spec in request.sides]
    models = _Models(run)
    model, _ = models.get(resolved[0])
    samples = shuffled(tokenize(request.texts, model.tokenizer, most=request.text_tokens), request.seed)
    widths, tokenizer, first_dtype = sides.shape_of(model), model.tokenizer, model.dtype
    del model
    done = [_observe_side(run, side, models, samples) for side in resolved]
    models.forget()
    if request.reference:
        stated = request.reference_dtype
        dtype = first_dtype if stated is None else devices.DTYPES[stated]
        done.append(_observe_reference(run, samples, tokenizer, dtype))
    return Observations(
        model=run.source.name, machine=_machine(device), widths=widths, sides=tuple(done), words=_words(done, tokenizer)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    request: ObservationRequest
    source: WeightSource
    device: torch.device
    progress: ObservationProgress


class _Models:
    """Loads models on demand; frees the memory of one before it loads the next."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._kept: tuple[LoadedModel, dict[int, LayerShape]] | None = None

    def get(self, side: ResolvedSide) -> tuple[LoadedModel, dict[int, LayerShape]]:
        if self._kept is None or self._kept[0].dtype is not sides.dtype(side, self._run.device):
            self.forget()
            self._kept = load(self._run.source, side.config, device=self._run.device)
        return self._kept

    def forget(self) -> None:
        self._kept = None
        _release()


def _observe_side(run: _Run, side: ResolvedSide, models: _Models, samples: Sequence[TokenizedText]) -> Side:
    model, layers = models.get(side)
    step = run.progress.begin(f"{side.spec.label}  {side.spec.about}", 3 * len(samples))
    seen = observe(
        sides.build(side, model, layers), samples, concurrency=run.request.concurrency,
        output_tokens=run.request.output_tokens, ended=_each(step),
    )  # fmt: skip
    _release()
    dtypes = (model.dtype, sides.kv_dtype(side, model.dtype))
    return _side(side.spec.label, side.spec.about, dtypes=dtypes, seen=seen)


def _observe_reference(run: _Run, samples: Sequence[TokenizedText], tokenizer: Any, dtype: torch.dtype) -> Side:
    model = load_plain(run.source, tokenizer, device=run.device, dtype=dtype)
    step = run.progress.begin(REFERENCE, 2 * len(samples))
    seen = observe_plain(model, samples, output_tokens=run.request.output_tokens, ended=_each(step))
    return _side(REFERENCE, "one request at a time, eager attention", dtypes=(dtype, dtype), seen=seen)


def _side(label: str, about: str, *, dtypes: tuple[torch.dtype, torch.dtype], seen: Observed) -> Side:
    dtype, kv_dtype = (Number(devices.dtype_name(item)) for item in dtypes)
    return Side(label=label, about=about, dtype=dtype, kv_dtype=kv_dtype, seen=seen)


def _words(done: Sequence[Side], tokenizer: Any) -> Mapping[int, str]:
    outcomes = [outcome for side in done for outcome in side.seen.outcomes.values()]
    tokens = {choice.token for outcome in outcomes for choice in outcome.greedy}
    return {token: tokenizer.decode([token]) for token in sorted(tokens)}


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": device.type,
        "device_name": devices.device_name(device),
        "cpu_features": list(devices.cpu_features()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _each(step: Callable[[], None]) -> Ended:
    return lambda _: step()


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
