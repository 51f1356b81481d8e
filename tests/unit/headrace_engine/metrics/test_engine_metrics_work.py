"""Metrics of tokens, steps and state; requests never add series. With the real scheduler and no model."""

import math
import random
from collections.abc import Iterable
from typing import Any

import pytest
from metrics_doubles import begun, books, bounds, made, request, rows, series, served, step, value

from headrace_core import metric_names as names
from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler.events import (
    Admitted,
    Finished,
    FinishReason,
    RejectReason,
    SchedulerStats,
    Started,
    StepResult,
    Token,
)
from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.sim.roofline import AttentionLayers, ModelShape, Peaks
from headrace_core.sim.step_time import StepShape, StepTimeModel
from headrace_engine.metrics.generation_record import GenerationRecord

STATS: dict[str, Any] = {
    "running": 0, "waiting": 0, "waiting_tokens": 0, "blocks_total": 10, "blocks_free": 10, "generation": 1, "steps": 0,
    "preemptions": 0, "tokens_prefill": 0, "tokens_decode": 0, "tokens_recomputed": 0,
}  # fmt: skip


# Cardinality


def test_no_request_can_make_series() -> None:
    metrics = made(max_model_len=2048)
    before, rng = series(metrics), random.Random(2)
    for at in range(1000):
        name = rng.choice(["", "x" * 5000, 'a"b\\c\nd', "\u2028", "é", f"{at}"]) + str(at)
        if rng.random() < 0.3:
            metrics.rejected(rng.choice(list(RejectReason)), retry_after=rng.choice([None, 0.0, 1e9]))
            continue
        record = begun(metrics, request(name, prompt=rng.randrange(1, 3000), output=rng.randrange(1, 10**9)), now=0.0)
        step(metrics, rows(name, 0, rng.randrange(0, 50)), seconds=rng.random() * 1000, failed=rng.random() < 0.1)
        for _ in range(rng.randrange(4)):
            record.token(rng.random() * 1e6)
            metrics.token(record, 1)
        if rng.random() < 0.5:
            record.start(0.1, 0)
        metrics.finished(record, rng.choice(list(FinishReason)), now=rng.random() * 1e7, corrupted=rng.random() < 0.1)
    assert series(metrics) == before
    assert metrics._live == {}
    assert value(metrics, names.REQUESTS) + value(metrics, names.REJECTED) == 1000


# Useful, recomputed and discarded tokens


def test_tokens_are_undecided_until_their_request_ends() -> None:
    metrics = made()
    record = begun(metrics, request(), now=0.0)
    step(metrics, rows("a", 0, 10))
    assert books(metrics) == {"useful": 0, "recomputed": 0, "discarded": 0, "undecided": 10}
    step(metrics, rows("a", 10, 1, prefill=False))
    metrics.finished(record, FinishReason.LENGTH, now=1.0)
    assert books(metrics) == {"useful": 11, "recomputed": 0, "discarded": 0, "undecided": 0}


def test_tokens_that_run_again_after_a_preemption_count_as_recomputed() -> None:
    metrics = made()
    record = begun(metrics, request(), now=0.0)
    step(metrics, rows("a", 0, 10))
    step(metrics, rows("a", 10, 1, prefill=False))
    step(metrics, preempted=["a"])
    step(metrics, rows("a", 4, 8), preempted=[])  # 4 were found in the prefix cache; the last position is new
    metrics.finished(record, FinishReason.ABORT, now=1.0)
    assert books(metrics) == {"useful": 0, "recomputed": 7, "discarded": 12, "undecided": 0}
    assert record.preemptions == 1


def test_cache_hits_are_not_computed_and_count_as_cached() -> None:
    metrics = made()
    record = begun(metrics, request(), now=0.0)
    step(metrics, rows("a", 8, 2))
    record.start(0.1, 8)
    record.token(0.2)
    metrics.token(record, 1)
    metrics.finished(record, FinishReason.STOP, now=0.3)
    assert books(metrics)["useful"] == 2
    sources = {
        one: value(metrics, names.VLLM_PROMPT_BY_SOURCE, source=one) for one in ("local_compute", "local_cache_hit")
    }
    assert sources == {"local_compute": 2, "local_cache_hit": 8}
    assert value(metrics, names.VLLM_PROMPT_TOKENS) == 10
    assert value(metrics, names.VLLM_PROMPT_CACHED) == 8
    assert value(metrics, names.VLLM_REQUEST_COMPUTED, "_sum") == 2


class Played:
    """The real scheduler under random load; its outcomes go to the metrics as from the engine loop."""

    def __init__(self, seed: int) -> None:
        self.rng, self.metrics = random.Random(seed), made()
        config = resolve({"max_num_seqs": 6, "max_num_batched_tokens": 16, "block_size": 4})
        self.scheduler = Scheduler(config, num_blocks=18, max_model_len=60)
        self.scheduler.expect([1] * 20, 0.0)  # admission lets in more than memory holds in the end
        self.live: dict[str, GenerationRecord] = {}

    def submit(self, now: float) -> None:
        # Mostly short outputs, so that admission underestimates the long ones.
        output = self.rng.choice([1, 1, 2, 2, 3, 35])
        new = request(str(now), prompt=self.rng.randrange(1, 20), output=output, reads_cache=self.rng.random() < 0.5)
        if isinstance(self.scheduler.submit(new, now), Admitted):
            self.live[new.request_id] = begun(self.metrics, new, now=now)

    def abort(self, name: str, now: float) -> None:
        self.handle([self.scheduler.abort(name, now)], now)

    def step(self, now: float) -> None:
        plan = self.scheduler.plan(now)
        if plan is None:
            return
        failed = frozenset(seq.request_id for seq in plan.seqs if self.rng.random() < 0.01)
        tokens = {seq.request_id: 7 for seq in plan.seqs if seq.samples}
        self.metrics.step(plan, 1, seconds=0.01, failed=False)
        self.handle(self.scheduler.commit(plan, StepResult(tokens=tokens, failed=failed), now), now)
        self.metrics.stats(self.scheduler.stats())

    def handle(self, outcomes: Iterable[object], now: float) -> None:
        for outcome in outcomes:
            match outcome:
                case Started(request_id=name, at=at, cached_tokens=cached):
                    self.live[name].start(at, cached)
                case Token(request_id=name):
                    self.live[name].token(now)
                    self.metrics.token(self.live[name], 1)
                case Finished(request_id=name, reason=reason):
                    self.metrics.finished(self.live.pop(name), reason, now=now)

    def check(self) -> dict[str, float]:
        """Every token that the scheduler computed is counted in exactly one kind."""
        stats, found = self.scheduler.stats(), books(self.metrics)
        assert sum(found.values()) == stats.tokens_prefill + stats.tokens_decode
        return found


@pytest.mark.parametrize("seed", range(5))
def test_the_books_close_under_preemption_aborts_and_failures(seed: int) -> None:
    played = Played(seed)
    for at in range(600):
        if at < 500 and played.rng.random() < 0.3:
            played.submit(at)
        if played.live and played.rng.random() < 0.05:
            played.abort(played.rng.choice(list(played.live)), at)
        played.step(at)
        if at % 50 == 0:
            played.check()
    for name in list(played.live):
        played.abort(name, 600)
    assert played.live == {}
    metrics, stats, found = played.metrics, played.scheduler.stats(), played.check()
    assert stats.preemptions > 0, "the test is about them"
    assert value(metrics, names.PREEMPTIONS) == value(metrics, names.VLLM_PREEMPTIONS) == stats.preemptions
    assert found["undecided"] == 0
    assert found["recomputed"] == stats.tokens_recomputed > 0
    assert found["discarded"] == stats.tokens_discarded > 0
    assert value(metrics, names.STEP_TOKENS, "_sum", phase="prefill") == stats.tokens_prefill
    assert value(metrics, names.STEP_TOKENS, "_sum", phase="decode") == stats.tokens_decode
    assert found["useful"] > 0


# Requests of several outputs, refusals, sizes


def test_outputs_of_one_prompt_are_one_request_in_vllms_eyes() -> None:
    metrics = made()
    group = [begun(metrics, request("p"), now=0.0), begun(metrics, request("q", fork_of="p"), now=0.0),
             begun(metrics, request("r", fork_of="p"), now=0.0), begun(metrics, request("alone"), now=0.0)]  # fmt: skip
    step(metrics, rows("p", 0, 10), rows("q", 10, 0, fork_of="p"), rows("r", 10, 0, fork_of="p"))
    for record, count in zip(group, (2, 5, 3, 1), strict=True):
        record.start(0.1, 0 if record.fork_of is None else record.prompt_tokens)
        for at in range(count):
            record.token(0.2 + at)
            metrics.token(record, 1)
    for record in group[:2]:
        metrics.finished(record, FinishReason.LENGTH, now=9.0)
    assert value(metrics, names.VLLM_PARAMS_N, "_count") == 0, "one output is still missing"
    for record in group[2:]:
        metrics.finished(record, FinishReason.STOP, now=9.0)
    assert (value(metrics, names.VLLM_PARAMS_N, "_count"), value(metrics, names.VLLM_PARAMS_N, "_sum")) == (2, 4)
    assert value(metrics, names.VLLM_MAX_GENERATION, "_sum") == 5 + 1
    assert value(metrics, names.VLLM_REQUEST_GENERATION, "_sum") == 11
    assert books(metrics)["useful"] == 10, "the prompt was computed once"


def test_refusals() -> None:
    metrics = made()
    metrics.rejected(RejectReason.QUEUE_FULL, retry_after=3.0)
    metrics.rejected(RejectReason.TOO_LONG)
    assert {one: value(metrics, names.REJECTED, reason=one) for one in ("queue_full", "too_long")} == {
        "queue_full": 1, "too_long": 1,
    }  # fmt: skip
    assert (value(metrics, names.RETRY_AFTER, "_count"), value(metrics, names.RETRY_AFTER, "_sum")) == (1, 3)
    assert value(metrics, names.VLLM_REJECTIONS) == 1


def test_sizes_of_finished_requests() -> None:
    metrics = made(max_model_len=100)
    record = served(metrics, prompt=30, output=70, times=(0.2, 0.3))
    step(metrics, preempted=["a"])
    step(metrics, preempted=["a"])
    metrics.finished(record, FinishReason.STOP, now=0.3)
    expected = {
        names.VLLM_REQUEST_PROMPT: 30, names.VLLM_REQUEST_GENERATION: 2, names.VLLM_REQUEST_COMPUTED: 30,
        names.VLLM_PARAMS_MAX_TOKENS: 70, names.VLLM_REQUEST_PREEMPTIONS: 2, names.VLLM_PARAMS_N: 1,
    }  # fmt: skip
    assert {metric: value(metrics, metric, "_sum") for metric in expected} == expected
    assert bounds(metrics, names.VLLM_REQUEST_PROMPT) == [1, 2, 5, 10, 20, 50, 100, math.inf]


def test_a_request_whose_logits_are_not_numbers_is_corrupted() -> None:
    metrics = made()
    metrics.finished(served(metrics, "a"), FinishReason.ERROR, now=0.3, corrupted=True)
    metrics.finished(served(metrics, "b"), FinishReason.ERROR, now=0.3)
    assert value(metrics, names.VLLM_CORRUPTED) == 1


# Steps


def test_tokens_of_a_step() -> None:
    metrics = made()
    step(metrics, rows("a", 5, 1, prefill=False), rows("b", 0, 7))
    step(metrics, rows("a", 6, 1, prefill=False))
    counts = {phase: value(metrics, names.STEP_TOKENS, "_count", phase=phase) for phase in names.PHASES}
    assert counts == {"prefill": 1, "decode": 2}
    assert value(metrics, names.VLLM_ITERATION_TOKENS, "_sum") == 7 + 2 + 1


def test_the_model_is_compared_with_the_clock_before_it_learns() -> None:
    metrics = made()
    step(metrics, rows("a", 5, 1, prefill=False), seconds=0.02)
    assert value(metrics, names.STEP_PREDICTED) == value(metrics, names.STEP_MODELLED) == 0, "nothing to predict from"
    step(metrics, rows("a", 5, 1, prefill=False), seconds=0.03)
    assert value(metrics, names.STEP_PREDICTED) == pytest.approx(0.02, rel=0.01)
    assert value(metrics, names.STEP_MODELLED) == pytest.approx(0.03)
    assert value(metrics, names.STEP_ERROR, "_sum") == pytest.approx(1 / 3, rel=0.02)
    step(metrics, rows("a", 5, 1, prefill=False), seconds=9.0, failed=True)
    assert value(metrics, names.STEP_MODELLED) == pytest.approx(0.03), "a failed step says nothing"
    assert value(metrics, names.STEP_FAILURES) == 1
    assert sum(value(metrics, names.STEP_MODEL, term=term) for term in names.MODEL_TERMS) > 0


def test_a_model_that_knows_the_machine_predicts_the_first_step() -> None:
    known = StepTimeModel([(StepShape.of([rows("a", 5, 1, prefill=False)]), 0.02)])
    metrics = made(cost_model=known)
    step(metrics, rows("a", 5, 1, prefill=False), seconds=0.02)
    assert metrics.cost_model is known
    assert value(metrics, names.STEP_PREDICTED) == pytest.approx(0.02)


def test_utilisation() -> None:
    metrics = made()
    step(metrics, rows("a", 5, 1, prefill=False))
    assert value(metrics, names.FLOPS) == value(metrics, names.MFU) == 0, "the model's shape is not known"
    kind = AttentionLayers(layers=2, query_heads=4, kv_heads=2, key_dim=8, value_dim=8, window=3)
    shape = ModelShape(layer_params=1000, head_params=500, weight_bytes=3000, kv_element_bytes=2, attention=(kind,))
    metrics.set_model(shape, Peaks(flops=1e6, read_bytes=1e5))
    step(metrics, rows("a", 5, 1, prefill=False), seconds=0.5)
    flops, read, written = 2 * 1500 + 2 * 2 * 4 * 16 * 3, 3000 + 2 * 2 * 16 * 2 * 3, 2 * 2 * 16 * 2
    assert value(metrics, names.FLOPS) == value(metrics, names.VLLM_FLOPS) == flops
    assert value(metrics, names.MEMORY_BYTES, direction="read") == value(metrics, names.VLLM_READ_BYTES) == read
    assert value(metrics, names.MEMORY_BYTES, direction="write") == value(metrics, names.VLLM_WRITE_BYTES) == written
    assert value(metrics, names.MFU) == pytest.approx(flops / 0.5e6)
    assert value(metrics, names.MBU) == pytest.approx((read + written) / 0.5e5)
    assert (value(metrics, names.PEAK_FLOPS), value(metrics, names.PEAK_BYTES)) == (1e6, 1e5)


def test_busy_time_grows_during_a_step_and_never_falls() -> None:
    metrics, age = made(), [0.0]
    metrics.watch_step(lambda: age[0])
    step(metrics, seconds=1.0)
    assert value(metrics, names.BUSY_SECONDS) == 1.0
    age[0] = 3.0
    assert value(metrics, names.BUSY_SECONDS) == 4.0
    age[0] = 0.0  # the step has ended and is not booked yet
    assert value(metrics, names.BUSY_SECONDS) == 4.0
    step(metrics, seconds=3.5)
    assert value(metrics, names.BUSY_SECONDS) == 4.5
    metrics.set_config(resolve({}), generation=2, revision="r2")
    age[0] = 0.25
    found = {one: value(metrics, names.BUSY_SECONDS, config_generation=one) for one in ("1", "2")}
    assert found == {"1": 4.5, "2": 0.25}


# State


def test_the_schedulers_state() -> None:
    metrics = made()
    now = STATS | {"running": 3, "waiting": 2, "waiting_tokens": 70, "blocks_free": 4}
    metrics.stats(SchedulerStats(**now, blocks_cached=1, cache_queries=50, cache_hits=20))
    metrics.stats(SchedulerStats(**now | {"preemptions": 2}, blocks_cached=1, cache_queries=80, cache_hits=48))
    assert value(metrics, names.RUNNING) == value(metrics, names.VLLM_RUNNING) == 3
    assert value(metrics, names.WAITING) == value(metrics, names.VLLM_WAITING) == 2
    assert value(metrics, names.VLLM_WAITING_BY_REASON, reason="capacity") == 2
    assert value(metrics, names.WAITING_TOKENS) == 70
    assert {one: value(metrics, names.KV_BLOCKS, state=one) for one in names.KV_BLOCKS.values} == {
        "used": 6, "cached": 1, "free": 3,
    }  # fmt: skip
    assert value(metrics, names.KV_USAGE) == value(metrics, names.VLLM_KV_USAGE) == pytest.approx(0.6)
    assert value(metrics, names.CACHE_QUERIES) == value(metrics, names.VLLM_CACHE_QUERIES) == 80
    assert value(metrics, names.CACHE_HITS) == value(metrics, names.VLLM_CACHE_HITS) == 48
    assert value(metrics, names.PREEMPTIONS) == 2


def test_vllm_series_name_the_engine() -> None:
    metrics = made()
    metrics.set_cache(resolve({}), 77)
    for name, labels in series(metrics):
        if name.startswith("vllm:"):
            assert ("engine", "0") in labels
            assert ("model_name", "m") in labels
    info = [dict(labels) for name, labels in series(metrics) if name == names.VLLM_CACHE_INFO.series]
    assert [(one["num_gpu_blocks"], one["block_size"], one["enable_prefix_caching"]) for one in info] == [
        ("77", "16", "True")
    ]
