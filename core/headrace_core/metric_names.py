"""Every metric of the engine as data: name, kind, labels, buckets. The tuner and the operator query these names.

`headrace:` metrics of work carry DECISION_LABELS, since a decision must know the config under which a sample was
taken. The `vllm:` names keep that engine's labels and semantics, so existing routers and dashboards work; where
they can't, `differs` says how. docs/metrics.md is generated from this table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace_core.evidence.slo import TARGETS, SloSet
from headrace_core.scheduler.events import FinishReason, RejectReason


class MetricKind(StrEnum):
    """Prometheus type."""

    COUNTER = "counter"  # exposed with the suffix _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


DECISION_LABELS = ("model_name", "config_generation", "revision")
STATE_LABELS = ("model_name",)
VLLM_LABELS = ("model_name", "engine")
VLLM_ENGINE = "0"  # vLLM numbers the engines of a process; here there is one

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
E2E_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
# Fine enough that a quantile read from it is off by less than 12 %: 20 bounds a decade, 1 ms to 100 s.
FINE_BUCKETS = tuple(round(10 ** (exponent / 20), 6) for exponent in range(-60, 41))
# For times that no SLO is about: 10 bounds a decade, 1 ms to 1000 s.
COARSE_BUCKETS = tuple(round(10 ** (exponent / 10), 6) for exponent in range(-30, 31))
TOKEN_BUCKETS = tuple(float(digit * 10**power) for power in range(8) for digit in (1, 2, 5))
STEP_TOKEN_BUCKETS = tuple(float(2**power) for power in range(17))
ITERATION_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
ERROR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
RETRY_BUCKETS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)

FINISH_REASONS = tuple(map(str, FinishReason))
REJECT_REASONS = tuple(map(str, RejectReason))
PHASES = ("prefill", "decode")
MODEL_TERMS = ("step", "row", "decode_key", "prefill_pair", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `name` is without the suffix _total.

    `values` are those of the last label, if all are known. `decision`: the tuner or the operator reads it.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = DECISION_LABELS
    buckets: tuple[float, ...] = ()
    slo: str = ""  # the SLO target whose threshold must be a bucket bound
    values: tuple[str, ...] = ()
    decision: bool = False
    up_to_model_len: bool = False  # only bounds up to max_model_len are used
    differs: str = ""  # for a `vllm:` name: how it differs from what vLLM counts

    @property
    def series(self) -> str:
        """Name as queried (counters with _total, histograms without suffix)."""
        return self.name + "_total" if self.kind is MetricKind.COUNTER else self.name


def buckets_with(buckets: Iterable[float], threshold: float | None) -> tuple[float, ...]:
    """`buckets` plus `threshold` (seconds, unless None) as an exact bound, sorted."""
    bounds = set(buckets)
    if threshold is not None:
        bounds.add(threshold)
    return tuple(sorted(bounds))


def slo_id(slo: SloSet | None) -> str:
    """Value of the label `slo`: 8 hex digits, equal for equal sets in every process; empty without an SLO."""
    if slo is None:
        return ""
    text = json.dumps({name: value and float(value) for name, value in slo.to_dict().items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM


def _own(kind: MetricKind, name: str, doc: str, *extra: str, **more: Any) -> Metric:
    return Metric(name=f"headrace:{name}", kind=kind, doc=doc, labels=(*DECISION_LABELS, *extra), **more)


def _state(name: str, doc: str, *extra: str, **more: Any) -> Metric:
    return Metric(name=f"headrace:{name}", kind=_G, doc=doc, labels=(*STATE_LABELS, *extra), **more)


def _vllm(kind: MetricKind, name: str, doc: str, *extra: str, **more: Any) -> Metric:
    return Metric(name=f"vllm:{name}", kind=kind, doc=doc, labels=(*VLLM_LABELS, *extra), **more)


# fmt: off
# Latency of requests
TTFT = _own(_H, "ttft_seconds", "Arrival to first token.", buckets=FINE_BUCKETS, slo="ttft", decision=True)
ITL = _own(_H, "itl_seconds", "Gap between two tokens.", buckets=FINE_BUCKETS, slo="itl", decision=True)
TPOT = _own(_H, "tpot_seconds", "Mean gap of one finished request.", buckets=FINE_BUCKETS, slo="tpot")
E2E = _own(_H, "e2e_seconds", "Arrival to last token.", buckets=FINE_BUCKETS, slo="e2e", decision=True)
QUEUE_TIME = _own(_H, "queue_seconds", "Arrival to the first planned chunk.", buckets=FINE_BUCKETS)
PREFILL_TIME = _own(
    _H, "prefill_seconds", "First planned chunk to first token, preemptions included.", buckets=COARSE_BUCKETS)
DECODE_TIME = _own(_H, "decode_seconds", "First to last token, preemptions included.", buckets=COARSE_BUCKETS)

# How requests ended
REQUESTS = _own(_C, "requests", "Requests that ended, by reason; abort: the client left.", "finish_reason",
                values=FINISH_REASONS)
REJECTED = _own(_C, "rejected", "Requests refused at submission.", "reason", values=REJECT_REASONS, decision=True)
RETRY_AFTER = _own(
    _H, "retry_after_seconds", "Retry-After sent with refusals that may be retried.", buckets=RETRY_BUCKETS)
SLO_TOTAL = _own(_C, "slo_requests", "Requests judged against the active SLO set, whose id is `slo`.", "slo",
                 decision=True)
SLO_GOOD = _own(_C, "slo_requests_good", "Those of slo_requests that met every threshold of the set.", "slo",
                decision=True)
SLO_MISSES = _own(
    _C, "slo_misses", "Those of slo_requests that missed this target; one request may miss several.", "slo", "target",
    values=TARGETS)
SLO_THRESHOLD = _state("slo_threshold_seconds", "Thresholds of the active SLO set.", "slo", "target")
PREEMPTIONS = _own(_C, "preemptions", "Sequences that lost their blocks.")

# Tokens
PROMPT_TOKENS = _own(_C, "prompt_tokens", "Prompt tokens of admitted requests.")
OUTPUT_TOKENS = _own(_C, "output_tokens", "Generated tokens.", decision=True)
TOKENS = _own(
    _C, "tokens",
    "Tokens computed, by outcome: useful (once, for a request that ended well), recomputed (again, after a "
    "preemption), discarded (once, for a request that was aborted or failed). With undecided_tokens they sum to all "
    "tokens computed.", "kind", values=("useful", "recomputed", "discarded"))
UNDECIDED_TOKENS = _state("undecided_tokens", "Tokens computed once for requests that are still live.")
CACHE_QUERIES = _own(_C, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
CACHE_HITS = _own(_C, "prefix_cache_hits", "Those of prefix_cache_queries that were found.")

# Steps
STEP_TIME = _own(_H, "step_seconds", "Wall time of one step.", buckets=FINE_BUCKETS)
STEP_TOKENS = _own(_H, "step_tokens", "Prefill or decode tokens of one step; steps without any are left out.",
                   "phase", buckets=STEP_TOKEN_BUCKETS, values=PHASES)
STEP_FAILURES = _own(_C, "step_failures", "Steps whose forward raised.")
BUSY_SECONDS = _own(_C, "busy_seconds", "Time spent inside steps, up to the moment of the scrape.")
STEP_PREDICTED = _own(
    _C, "step_predicted_seconds", "Time that the step-time model predicted for the steps of step_modelled_seconds.")
STEP_MODELLED = _own(
    _C, "step_modelled_seconds", "Wall time of the steps for which the step-time model had a prediction.")
STEP_ERROR = _own(
    _H, "step_prediction_error_ratio", "Absolute error of the predicted step time, as a share of the wall time.",
    buckets=ERROR_BUCKETS)
STEP_MODEL = _state(
    "step_model_seconds", "The step-time model: seconds for each step, row, decode key, prefill pair and sample.",
    "term", values=MODEL_TERMS)
STEP_RESIDUAL = _state(
    "step_model_residual_ratio", "The model's recent residuals as a share of the step: mean signed (bias) and mean "
    "absolute (error).", "kind", values=("bias", "error"))

# Utilisation
FLOPS = _own(_C, "estimated_flops", "Floating-point operations that the steps needed, from the model's shape.")
MEMORY_BYTES = _own(
    _C, "estimated_memory_bytes", "Weight and KV bytes that the steps had to move, from the model's shape.",
    "direction", values=("read", "write"))
PEAK_FLOPS = _state("peak_flops_per_second", "Rate of a large matrix product in the model's number format, measured "
                    "at start; 0 where it was not measured.")
PEAK_BYTES = _state("peak_bytes_per_second", "Rate of a streaming read, measured at start; 0 where it was not "
                    "measured.")
MFU = _state("mfu_ratio", "Model FLOPs utilisation of recent steps: estimated_flops over peak, while busy.")
MBU = _state("mbu_ratio", "Memory bandwidth utilisation of recent steps: estimated_memory_bytes over peak, while "
             "busy. Above 1 where the weights fit into a CPU's cache.")

# State
RUNNING = _state("running", "Sequences running.", decision=True)
WAITING = _state("waiting", "Requests in the queue.", decision=True)
WAITING_TOKENS = _state("waiting_tokens", "Prompt tokens in the queue.")
KV_USAGE = _state("kv_usage_ratio", "KV blocks in use, 0 to 1.")
KV_BLOCKS = _state("kv_blocks", "KV blocks: used by sequences, cached (unused, with content that can still be hit), "
                   "free.", "state", values=("used", "cached", "free"))
CONFIG_GENERATION = _state("config_generation", "Generation of the config in force.")
CONFIG_INFO = Metric(
    name="headrace:config_info", kind=_G, labels=(*DECISION_LABELS, "knob", "value"), decision=True,
    doc="Always 1; one series for the value in force of each hot knob.")
ENGINE_INFO = _state(
    "engine_info", "Always 1; the labels say what runs where. pretend_gpu is true if the allotted GPU is a stand-in "
    "and the CPU does the work.", "version", "device", "dtype", "pretend_gpu")
START_TIME = _state("start_time_seconds", "Unix time at which the engine started.", decision=True)

# vLLM's names: latency
VLLM_TTFT = _vllm(
    _H, "time_to_first_token_seconds", "Time to first token.", buckets=TTFT_BUCKETS, slo="ttft",
    differs="The threshold of the start-up SLO is an additional bound.")
VLLM_ITL = _vllm(
    _H, "inter_token_latency_seconds", "Inter-token latency, each gap.", buckets=ITL_BUCKETS, slo="itl",
    differs="The threshold of the start-up SLO is an additional bound.")
VLLM_TPOT = _vllm(
    _H, "request_time_per_output_token_seconds", "Time per output token of one request; 0 for a single token.",
    buckets=ITL_BUCKETS, slo="tpot", differs="The threshold of the start-up SLO is an additional bound.")
VLLM_E2E = _vllm(
    _H, "e2e_request_latency_seconds", "End-to-end latency.", buckets=E2E_BUCKETS, slo="e2e",
    differs="Only requests that ended by stop or length. The threshold of the start-up SLO is an additional bound.")
VLLM_QUEUE = _vllm(_H, "request_queue_time_seconds", "Time in the queue, from submission on.", buckets=E2E_BUCKETS)
VLLM_INFERENCE = _vllm(_H, "request_inference_time_seconds", "First planned chunk to last token.", buckets=E2E_BUCKETS)
VLLM_PREFILL = _vllm(_H, "request_prefill_time_seconds", "First planned chunk to first token.", buckets=E2E_BUCKETS)
VLLM_DECODE = _vllm(_H, "request_decode_time_seconds", "First token to last token.", buckets=E2E_BUCKETS)

# vLLM's names: sizes
VLLM_REQUEST_PROMPT = _vllm(
    _H, "request_prompt_tokens", "Prompt tokens of a finished request.", buckets=TOKEN_BUCKETS, up_to_model_len=True)
VLLM_REQUEST_GENERATION = _vllm(
    _H, "request_generation_tokens", "Generated tokens of a finished request.", buckets=TOKEN_BUCKETS,
    up_to_model_len=True)
VLLM_REQUEST_COMPUTED = _vllm(
    _H, "request_prefill_kv_computed_tokens", "Prompt tokens of a finished request less those found in the prefix "
    "cache.", buckets=TOKEN_BUCKETS, up_to_model_len=True)
VLLM_MAX_GENERATION = _vllm(
    _H, "request_max_num_generation_tokens", "Length of the longest of a request's n outputs, in tokens.",
    buckets=TOKEN_BUCKETS, up_to_model_len=True)
VLLM_PARAMS_N = _vllm(_H, "request_params_n", "The request parameter n.", buckets=COUNT_BUCKETS)
VLLM_PARAMS_MAX_TOKENS = _vllm(
    _H, "request_params_max_tokens", "The request parameter max_tokens.", buckets=TOKEN_BUCKETS, up_to_model_len=True,
    differs="If a request sets none, the default limit that applied.")
VLLM_REQUEST_PREEMPTIONS = _vllm(
    _H, "request_num_preemptions", "Preemptions of a finished request.", buckets=PREEMPTION_BUCKETS)
VLLM_ITERATION_TOKENS = _vllm(
    _H, "iteration_tokens_total", "Prefill tokens computed and tokens generated in one step.",
    buckets=ITERATION_BUCKETS,
    differs="Prefill counts in the step that computes it; some releases count a whole prompt with its first token.")

# vLLM's names: state and counts
VLLM_RUNNING = _vllm(_G, "num_requests_running", "Requests running.")
VLLM_WAITING = _vllm(_G, "num_requests_waiting", "Requests waiting.")
VLLM_WAITING_BY_REASON = _vllm(
    _G, "num_requests_waiting_by_reason", "Requests waiting: for capacity, or deferred by a rule.", "reason",
    values=("capacity", "deferred"),
    differs="A long prompt that waits behind another (long_prefill_token_threshold) is counted under capacity.")
VLLM_KV_USAGE = _vllm(_G, "kv_cache_usage_perc", "KV usage; 1 is full.")
VLLM_PREEMPTIONS = _vllm(_C, "num_preemptions", "Preemptions.")
VLLM_PROMPT_TOKENS = _vllm(_C, "prompt_tokens", "Prompt tokens, counted with the first token.")
VLLM_PROMPT_CACHED = _vllm(_C, "prompt_tokens_cached", "Of prompt_tokens, those found in the prefix cache.")
VLLM_PROMPT_BY_SOURCE = _vllm(
    _C, "prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source",
    values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    differs="external_kv_transfer is always 0: there is no external cache.")
VLLM_GENERATION_TOKENS = _vllm(_C, "generation_tokens", "Generated tokens.")
VLLM_CACHE_QUERIES = _vllm(
    _C, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache; not again after a preemption.",
    differs="Further outputs of one prompt share its blocks without being looked up.")
VLLM_CACHE_HITS = _vllm(_C, "prefix_cache_hits", "Those of prefix_cache_queries that were found.")
VLLM_SUCCESS = _vllm(
    _C, "request_success", "Requests that ended, by reason.", "finished_reason", values=FINISH_REASONS,
    differs="Requests whose client left count as abort.")
VLLM_REJECTIONS = _vllm(
    _C, "admission_rejections", "Requests refused because the queue is full.", "reason", values=("queue_full",),
    differs="Only one reason. The error body says which of max_queue_len and max_queue_tokens was exceeded.")
VLLM_CORRUPTED = _vllm(_C, "corrupted_requests", "Requests that failed because their logits were not numbers.")
VLLM_FLOPS = _vllm(
    _C, "estimated_flops_per_gpu", "Floating-point operations, from the model's shape.",
    differs="Matrix products and attention only.")
VLLM_READ_BYTES = _vllm(
    _C, "estimated_read_bytes_per_gpu", "Bytes read, from the model's shape.", differs="Weights and KV only.")
VLLM_WRITE_BYTES = _vllm(_C, "estimated_write_bytes_per_gpu", "Bytes written, from the model's shape.",
                         differs="KV only.")
VLLM_CACHE_INFO = _vllm(
    _G, "cache_config_info", "Always 1; the labels are the KV cache configuration.",
    "block_size", "num_gpu_blocks", "gpu_memory_utilization",
    "cache_dtype", "enable_prefix_caching",
    differs="Also labelled model_name. Of vLLM's labels, only those that exist here.")
# fmt: on

ALL_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
