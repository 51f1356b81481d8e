"""Metrics of requests, SLOs and generations, driven by hand; no model, no clock."""

import itertools
import math
import random

import pytest
from metrics_doubles import SLO, bounds, made, series, served, value

from headrace_core import metric_names as names
from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.resolve import resolve
from headrace_core.metric_names import slo_id
from headrace_core.scheduler.events import FinishReason
from headrace_engine.metrics.engine_metrics import KEPT_GENERATIONS

# Latency


def test_times_of_one_request() -> None:
    metrics = made()
    metrics.finished(served(metrics, times=(0.3, 0.34, 0.44)), FinishReason.LENGTH, now=0.44)
    expected = {
        names.TTFT: 0.3, names.ITL: 0.14, names.TPOT: 0.07, names.E2E: 0.44, names.QUEUE_TIME: 0.1,
        names.PREFILL_TIME: 0.2, names.DECODE_TIME: 0.14, names.VLLM_TTFT: 0.3, names.VLLM_ITL: 0.14,
        names.VLLM_TPOT: 0.07, names.VLLM_E2E: 0.44, names.VLLM_QUEUE: 0.05, names.VLLM_PREFILL: 0.2,
        names.VLLM_DECODE: 0.14, names.VLLM_INFERENCE: 0.34,
    }  # fmt: skip
    for metric, seconds in expected.items():
        assert value(metrics, metric, "_sum") == pytest.approx(seconds), metric.name
        gaps = metric in (names.ITL, names.VLLM_ITL)
        assert value(metrics, metric, "_count") == (2 if gaps else 1), metric.name


def test_a_single_token_has_no_gap() -> None:
    metrics = made()
    metrics.finished(served(metrics, times=(0.3,)), FinishReason.STOP, now=0.3)
    assert value(metrics, names.TPOT, "_count") == value(metrics, names.ITL, "_count") == 0
    assert (value(metrics, names.VLLM_TPOT, "_count"), value(metrics, names.VLLM_TPOT, "_sum")) == (1, 0), "as there"
    assert value(metrics, names.DECODE_TIME, "_count") == 1


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_requests_that_did_not_end_well_have_no_end_to_end_time(reason: FinishReason) -> None:
    metrics = made()
    metrics.finished(served(metrics), reason, now=0.3)
    assert value(metrics, names.TTFT, "_count") == 1
    assert value(metrics, names.E2E, "_count") == value(metrics, names.VLLM_E2E, "_count") == 0
    assert value(metrics, names.REQUESTS, finish_reason=str(reason)) == 1
    assert value(metrics, names.VLLM_SUCCESS, finished_reason=str(reason)) == 1


def test_the_histograms_count_exactly_the_tokens_of_the_requests() -> None:
    """Of k finished requests: TTFT counts those with a token, ITL all further tokens; e2e >= TTFT >= queue for each."""
    metrics, rng, outputs = made(), random.Random(1), []
    for at in range(60):
        count = rng.choice([0, 1, 2, 9])
        stamps = list(itertools.accumulate((rng.random() * 0.1 for _ in range(count)), initial=0.2))[:count]
        before = {metric: value(metrics, metric, "_sum") for metric in (names.E2E, names.TTFT, names.QUEUE_TIME)}
        ended = served(metrics, str(at), times=stamps)
        reason = FinishReason.ERROR if count == 0 else FinishReason.LENGTH
        metrics.finished(ended, reason, now=stamps[-1] if stamps else 0.3)
        outputs.append(count)
        if count:
            e2e, ttft, queued = (value(metrics, metric, "_sum") - before[metric] for metric in before)
            assert e2e >= ttft - 1e-9 >= queued - 2e-9, "sums of many, hence the tolerance"
    assert value(metrics, names.TTFT, "_count") == sum(count > 0 for count in outputs)
    assert value(metrics, names.ITL, "_count") == sum(max(0, count - 1) for count in outputs)
    assert value(metrics, names.OUTPUT_TOKENS) == value(metrics, names.VLLM_GENERATION_TOKENS) == sum(outputs)


# The SLO set


def test_each_threshold_is_a_bound() -> None:
    metrics = made()
    for metric, threshold in ((names.TTFT, 0.37), (names.ITL, 0.0517), (names.E2E, 7.7)):
        assert threshold in bounds(metrics, metric, config_generation="1")
    assert bounds(metrics, names.TPOT, config_generation="1") == [*names.FINE_BUCKETS, math.inf]
    assert 0.37 in bounds(metrics, names.VLLM_TTFT)
    assert value(metrics, names.SLO_THRESHOLD, target="ttft", slo=slo_id(SLO)) == 0.37


def test_good_is_joint_and_misses_say_which() -> None:
    metrics = made()
    ends = [((0.3, 0.34), 0.34), ((0.38, 0.40), 0.40), ((0.3, 0.36), 0.36), ((0.38, 7.6), 7.8)]
    for name, (times, now) in enumerate(ends):
        metrics.finished(served(metrics, str(name), times=times), FinishReason.STOP, now=now)
    assert value(metrics, names.SLO_TOTAL, slo=slo_id(SLO)) == 4
    assert value(metrics, names.SLO_GOOD, slo=slo_id(SLO)) == 1
    missed = {target: value(metrics, names.SLO_MISSES, target=target) for target in ("ttft", "itl", "e2e", "tpot")}
    assert missed == {"ttft": 2, "itl": 2, "e2e": 1, "tpot": 0}


def test_a_failed_request_misses_every_target_and_an_aborted_one_only_what_was_broken() -> None:
    metrics = made()
    metrics.finished(served(metrics, "failed"), FinishReason.ERROR, now=0.3)
    metrics.finished(served(metrics, "left early"), FinishReason.ABORT, now=0.3)
    metrics.finished(served(metrics, "left late", times=()), FinishReason.ABORT, now=0.5)
    assert (value(metrics, names.SLO_TOTAL), value(metrics, names.SLO_GOOD)) == (2, 0)
    missed = {target: value(metrics, names.SLO_MISSES, target=target) for target in ("ttft", "itl", "e2e")}
    assert missed == {"ttft": 2, "itl": 1, "e2e": 1}


def test_another_slo_set_begins_series_with_its_own_bounds() -> None:
    metrics = made()
    metrics.finished(served(metrics), FinishReason.STOP, now=0.3)
    other = SloSet(ttft_seconds=0.123, tpot_seconds=0.0456)
    metrics.set_slo(other)
    metrics.set_config(resolve({}), generation=2, revision="r1")
    assert metrics.slo == other
    assert 0.123 in bounds(metrics, names.TTFT, config_generation="2")
    assert 0.37 not in bounds(metrics, names.TTFT, config_generation="2")
    assert 0.37 in bounds(metrics, names.TTFT, config_generation="1"), "what was measured stays as it was"
    assert 0.0456 in bounds(metrics, names.TPOT, config_generation="2")
    metrics.finished(served(metrics, "b", times=(0.2, 0.24)), FinishReason.STOP, now=0.24)
    counted = {(one, generation): value(metrics, names.SLO_TOTAL, slo=slo_id(one), config_generation=generation)
               for one in (SLO, other) for generation in ("1", "2")}  # fmt: skip
    assert counted == {(SLO, "1"): 1, (SLO, "2"): 0, (other, "1"): 0, (other, "2"): 1}
    assert value(metrics, names.SLO_GOOD, slo=slo_id(other)) == 0, "0.2 s is beyond its threshold"
    thresholds = {labels for name, labels in series(metrics) if name == names.SLO_THRESHOLD.series}
    assert {dict(labels)["target"] for labels in thresholds} == {"ttft", "tpot"}
    assert 0.37 in bounds(metrics, names.VLLM_TTFT), "those without a generation keep theirs"


def test_without_an_slo_set_no_request_is_judged() -> None:
    metrics = made(None)
    metrics.finished(served(metrics), FinishReason.STOP, now=0.3)
    assert value(metrics, names.SLO_TOTAL) == 0
    metrics.set_slo(SLO)
    metrics.set_config(resolve({}), generation=2, revision="")
    metrics.finished(served(metrics, "b"), FinishReason.STOP, now=0.3)
    assert value(metrics, names.SLO_TOTAL, slo=slo_id(SLO), config_generation="2") == 1
    metrics.set_slo(None)
    metrics.set_config(resolve({}), generation=3, revision="")
    metrics.finished(served(metrics, "c"), FinishReason.STOP, now=0.3)
    assert value(metrics, names.SLO_TOTAL) == 1


# Generations


def test_a_request_across_a_change_blames_neither_config() -> None:
    metrics = made()
    crossing = served(metrics)
    metrics.set_config(resolve({"decode_ratio": 0.5}), generation=2, revision="r2")
    metrics.finished(crossing, FinishReason.STOP, now=0.3)
    found = {one: value(metrics, names.REQUESTS, config_generation=one) for one in ("1", "2", "mixed")}
    assert found == {"1": 0, "2": 0, "mixed": 1}
    assert value(metrics, names.TTFT, "_count", config_generation="mixed", revision="mixed") == 1


def test_series_start_at_zero_with_their_generation() -> None:
    metrics = made()
    counters = [metric for metric in names.ALL_METRICS if metric.kind is names.MetricKind.COUNTER]
    alive = {name for name, _ in series(metrics)}
    assert {metric.series for metric in counters} <= alive
    metrics.set_config(resolve({}), generation=2, revision="r2")
    for reason in names.REJECT_REASONS:
        labels = {"model_name": "m", "config_generation": "2", "revision": "r2", "reason": reason}
        assert (names.REJECTED.series, tuple(sorted(labels.items()))) in series(metrics)


def test_old_generations_are_dropped_and_the_rest_does_not_grow() -> None:
    metrics = made()
    sizes = []
    for generation in range(2, 40):
        crossing = served(metrics, f"{generation}")
        metrics.set_slo(SloSet(ttft_seconds=generation / 100 + 0.00037))
        metrics.set_config(
            resolve({"decode_ratio": generation / 100}), generation=generation, revision=f"r{generation}"
        )
        metrics.finished(crossing, FinishReason.STOP, now=0.3)
        metrics.finished(served(metrics, f"{generation} b"), FinishReason.STOP, now=0.3)
        sizes.append(len(series(metrics)))
    kept = {dict(labels).get("config_generation") for _, labels in series(metrics)}
    assert kept == {None, "mixed", *map(str, range(40 - KEPT_GENERATIONS, 40))}
    assert len(set(sizes[KEPT_GENERATIONS:])) == 1, "not with each revision either"
    assert metrics._series.keys() <= {"mixed", *map(str, range(40 - KEPT_GENERATIONS, 40))}


def test_the_config_in_force_is_the_only_one_shown() -> None:
    metrics = made()
    metrics.set_config(resolve({"decode_ratio": 0.25, "preemptible": False}), generation=2, revision="r2")
    shown = [dict(labels) for name, labels in series(metrics) if name == names.CONFIG_INFO.series]
    assert {one["config_generation"] for one in shown} == {"2"}
    assert {one["knob"]: one["value"] for one in shown}["preemptible"] == "false"
    assert value(metrics, names.CONFIG_INFO, knob="decode_ratio", value="0.25") == 1
