"""Run the sides one after another, with one model in memory at a time, and compare them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headrace_engine import device as devices
from headrace_engine.attention.kv_cache import LayerShape
from headrace_engine.engine import load
from headrace_engine.model.loading import LoadedModel
from headrace_engine.model.weights import find_source
from headrace_engine.quality import sides
from headrace_engine.quality.comparison import QualityComparison, compare
from headrace_engine.quality.observed import Observed, Side
from headrace_engine.quality.passes import Ended, observe
from headrace_engine.quality.reference import load_plain, observe_plain
from headrace_engine.quality.rounding import ModelWidths, Number
from headrace_engine.quality.sides import Spec
from headrace_engine.quality.texts import Passage, TokenizedText, shuffled, tokenize
from headrace_engine.quality.verdict import QualityFinding, VerdictRules, judge, worst

REFERENCE = "transformers"


class QualityProgress(Protocol):
    """Who shows how far a run is."""

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """A stage of `total` parts begins; call the result after each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """What to run: one or two specs, the base first. `reference` is transformers' dtype, None to leave it out.

    Texts are cut to `text_tokens`; the seed decides the order in which they arrive.
    """

    model: str
    specs: tuple[Spec, ...]
    reference: torch.dtype | None
    texts: tuple[Passage, ...]
    text_tokens: int
    output_tokens: int
    concurrency: int
    seed: int
    rules: VerdictRules
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """What came of a plan: the sides, each pair of them with its finding, and the finding over all pairs."""

    name: str
    sides: tuple[Side, ...]
    pairs: tuple[tuple[QualityComparison, QualityFinding], ...]
    decision: QualityFinding
    words: Mapping[int, str]  # the text of each token at which outputs part


def run(plan: QualityPlan, progress: QualityProgress) -> QualityResult:
    """Run every side and compare: the candidate with the base, and each with the reference. Raises `EngineError`."""
    models = _Models(plan)
    model, _ = models.get(plan.specs[0])
    samples = shuffled(tokenize(plan.texts, model.tokenizer, most=plan.text_tokens), plan.seed)
    shape, tokenizer = sides.shape_of(model), model.tokenizer
    del model
    done = [_run_spec(plan, spec, models, samples=samples, progress=progress) for spec in plan.specs]
    pairs = list(itertools.pairwise(done))
    models.forget()
    if plan.reference is not None:
        reference = _run_reference(plan, samples, tokenizer, progress=progress)
        pairs += [(reference, side) for side in done]
        done.append(reference)
    judged = tuple(_judge(base, candidate, shape, plan.rules) for base, candidate in pairs)
    return QualityResult(
        name=find_source(plan.model).name,
        sides=tuple(done),
        pairs=judged,
        decision=worst([finding for _, finding in judged]),
        words=_words(judged, tokenizer),
    )


class _Models:
    """Loads models; the memory of one is given back before the next is loaded."""

    def __init__(self, plan: QualityPlan) -> None:
        self._plan = plan
        self._kept: tuple[LoadedModel, dict[int, LayerShape]] | None = None

    def get(self, spec: Spec) -> tuple[LoadedModel, dict[int, LayerShape]]:
        if self._kept is None or self._kept[0].dtype is not sides.dtype(spec, self._plan.device):
            self.forget()
            self._kept = load(find_source(self._plan.model), spec.config, device=self._plan.device)
        return self._kept

    def forget(self) -> None:
        self._kept = None
        _release()


def _run_spec(
    plan: QualityPlan, spec: Spec, models: _Models, *, samples: Sequence[TokenizedText], progress: QualityProgress
) -> Side:
    model, layers = models.get(spec)
    step = progress.begin(f"{spec.label}  {spec.about}", 3 * len(samples))
    seen = observe(
        sides.build(spec, model, layers), samples, concurrency=plan.concurrency, output_tokens=plan.output_tokens,
        ended=_each(step),
    )  # fmt: skip
    _release()
    return _side(spec.label, spec.about, dtypes=(model.dtype, sides.kv_dtype(spec, model.dtype)), seen=seen)


def _run_reference(
    plan: QualityPlan, samples: Sequence[TokenizedText], tokenizer: Any, *, progress: QualityProgress
) -> Side:
    dtype = plan.reference or torch.float32
    model = load_plain(find_source(plan.model), tokenizer, device=plan.device, dtype=dtype)
    step = progress.begin(REFERENCE, 2 * len(samples))
    seen = observe_plain(model, samples, output_tokens=plan.output_tokens, ended=_each(step))
    return _side(REFERENCE, "one request at a time, eager attention", dtypes=(dtype, dtype), seen=seen)


def _side(label: str, about: str, *, dtypes: tuple[torch.dtype, torch.dtype], seen: Observed) -> Side:
    dtype, kv_dtype = (Number(devices.dtype_name(item)) for item in dtypes)
    return Side(label=label, about=about, dtype=dtype, kv_dtype=kv_dtype, seen=seen)


def _judge(
    base: Side, candidate: Side, shape: ModelWidths, rules: VerdictRules
) -> tuple[QualityComparison, QualityFinding]:
    comparison = compare(base, candidate, shape, margin=rules.margin, confidence=rules.confidence)
    return comparison, judge(comparison, rules)


def _words(pairs: Sequence[tuple[QualityComparison, QualityFinding]], tokenizer: Any) -> dict[int, str]:
    parted = (item for comparison, _ in pairs for item in comparison.agreement.differences)
    tokens = {token for item in parted for token in (item.base_token, item.candidate_token)}
    return {token: tokenizer.decode([token]) for token in sorted(tokens)}


def _each(step: Callable[[], None]) -> Ended:
    return lambda _: step()


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
