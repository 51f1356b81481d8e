"""Sides of tiny models, sound and broken."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_bench.quality.comparison import QualityComparison, compare
from headrace_bench.quality.texts import read_texts
from headrace_core.observations import Number, Observed, Side
from headrace_core.scheduler.events import ScheduledSeq
from headrace_engine.attention.interface import IMPLEMENTATION
from headrace_engine.model.loading import LoadedModel
from headrace_engine.quality import sides
from headrace_engine.quality.offline import Offline, WatchedRunner, crowd
from headrace_engine.quality.passes import observe
from headrace_engine.quality.reference import observe_plain
from headrace_engine.quality.samples import TokenizedText, tokenize


class LosesOnePosition(WatchedRunner):
    """Forgets the keys and values of one position as soon as they are written: a fault of paging."""

    position = 3

    def logits(self, seqs: Sequence[ScheduledSeq], also: Sequence[int] = ()) -> Any:
        logits = super().logits(seqs, also)
        block, offset = divmod(self.position, self.pool.block_size)
        for seq in seqs:
            if seq.start + seq.num_tokens > self.position:
                for tensor in (*self.pool.keys.values(), *self.pool.values.values()):
                    tensor[seq.block_table[block], :, offset] = 0
        return logits


class KeepsHalf(WatchedRunner):
    """Stores keys and values in bfloat16, whatever the config says."""

    def logits(self, seqs: Sequence[ScheduledSeq], also: Sequence[int] = ()) -> Any:
        logits = super().logits(seqs, also)
        for tensor in (*self.pool.keys.values(), *self.pool.values.values()):
            tensor.copy_(tensor.bfloat16().to(tensor.dtype))
        return logits


def samples(model: LoadedModel, *, count: int = 12, most: int = 48) -> tuple[TokenizedText, ...]:
    """The first built-in texts."""
    return tokenize(read_texts("built-in")[:count], model.tokenizer, most=most)


@pytest.fixture(scope="session")
def quality(engine: Any) -> Any:
    """The functions and classes of this file, for tests."""

    def broken(made: Offline, model: LoadedModel, runner: type[WatchedRunner] = LosesOnePosition) -> Offline:
        pool, backend = made.runner.pool, made.runner.backend
        return replace(made, runner=runner(model, pool, backend), all_rows=runner(model, pool, backend, every_row=True))

    def offline(model: LoadedModel, runner: type[WatchedRunner] = WatchedRunner, **knobs: Any) -> Offline:
        scheduler, plain = engine.make(model, **knobs)
        if "num_blocks" in knobs:
            crowd(scheduler)
        return broken(Offline.over(model, plain.pool, plain.backend, scheduler=scheduler), model, runner)

    def seen(
        model: LoadedModel, runner: type[WatchedRunner] = WatchedRunner, *, concurrency: int = 8, count: int = 12,
        most: int = 48, output_tokens: int = 8, **knobs: Any,
    ) -> Observed:  # fmt: skip
        return observe(
            offline(model, runner, **knobs), samples(model, count=count, most=most), concurrency=concurrency,
            output_tokens=output_tokens, ended=lambda _: None,
        )  # fmt: skip

    def plain(model: LoadedModel, *, count: int = 12, most: int = 48, output_tokens: int = 8) -> Observed:
        model.module.set_attn_implementation("eager")
        try:
            return observe_plain(
                model, samples(model, count=count, most=most), output_tokens=output_tokens, ended=lambda _: None
            )
        finally:
            model.module.set_attn_implementation(IMPLEMENTATION)

    def against(model: LoadedModel, base: Observed, candidate: Observed) -> QualityComparison:
        number = Number(str(model.dtype).removeprefix("torch."))
        both = [
            Side(label=label, about="", dtype=number, kv_dtype=number, seen=item)
            for label, item in (("A", base), ("B", candidate))
        ]
        return compare(both[0], both[1], sides.shape_of(model), margin=0.01)

    return SimpleNamespace(
        broken=broken, offline=offline, seen=seen, plain=plain, against=against, samples=samples,
        loses_one_position=LosesOnePosition, keeps_half=KeepsHalf,
    )  # fmt: skip
