"""Every metric of the engine as data: name, kind, labels, buckets. The tuner and the operator query these names.

`headrace:` names carry DECISION_LABELS, since a decision must know under which config a sample was taken; the
`vllm:` names keep that engine's labels and semantics, so that existing routers and dashboards work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Prometheus type."""

    COUNTER = "counter"  # exposed with the suffix _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


DECISION_LABELS = ("model_name", "config_generation", "revision")
VLLM_LABELS = ("model_name",)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `name` is without the suffix _total."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = DECISION_LABELS
    buckets: tuple[float, ...] = ()
    slo: str = ""  # the SLO target whose threshold must be a bucket bound

    @property
    def series(self) -> str:
        """Name as queried (counters with _total, histograms without suffix)."""
        return self.name + "_total" if self.kind is MetricKind.COUNTER else self.name


def buckets_with(buckets: Iterable[float], threshold: float | None) -> tuple[float, ...]:
    """`buckets` with `threshold` (seconds) as an exact bound, sorted."""
    bounds = set(buckets)
    if threshold is not None:
        bounds.add(threshold)
    return tuple(sorted(bounds))


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

TTFT = Metric(name="headrace:ttft_seconds", kind=_H, buckets=FINE_BUCKETS, slo="ttft", doc="Arrival to first token.")
ITL = Metric(name="headrace:itl_seconds", kind=_H, buckets=FINE_BUCKETS, slo="itl", doc="Gap between two tokens.")
TPOT = Metric(
    name="headrace:tpot_seconds", kind=_H, buckets=FINE_BUCKETS, slo="tpot", doc="Mean gap of one finished request."
)
E2E = Metric(name="headrace:e2e_seconds", kind=_H, buckets=FINE_BUCKETS, slo="e2e", doc="Arrival to last token.")
QUEUE_TIME = Metric(
    name="headrace:queue_seconds", kind=_H, buckets=FINE_BUCKETS, doc="Arrival to the first planned chunk."
)
STEP_TIME = Metric(name="headrace:step_seconds", kind=_H, buckets=FINE_BUCKETS, doc="Wall time of one step.")
REQUESTS = Metric(
    name="headrace:requests", kind=_C, labels=(*DECISION_LABELS, "finish_reason"), doc="Finished requests by reason."
)
SLO_TOTAL = Metric(name="headrace:slo_requests", kind=_C, doc="Finished requests judged against the active SLO set.")
SLO_GOOD = Metric(
    name="headrace:slo_requests_good", kind=_C, doc="Those of slo_requests that met every threshold of the set at once."
)
PROMPT_TOKENS = Metric(name="headrace:prompt_tokens", kind=_C, doc="Prompt tokens of admitted requests.")
OUTPUT_TOKENS = Metric(name="headrace:output_tokens", kind=_C, doc="Generated tokens.")
RECOMPUTED_TOKENS = Metric(
    name="headrace:recomputed_tokens", kind=_C, doc="Tokens computed again after a preemption: work not useful."
)
PREEMPTIONS = Metric(name="headrace:preemptions", kind=_C, doc="Sequences that lost their blocks.")
REJECTED = Metric(
    name="headrace:rejected", kind=_C, labels=(*DECISION_LABELS, "reason"), doc="Requests refused at submission."
)
STEP_FAILURES = Metric(name="headrace:step_failures", kind=_C, doc="Steps whose forward raised.")
BUSY_SECONDS = Metric(name="headrace:busy_seconds", kind=_C, doc="Time spent inside steps.")
RUNNING = Metric(name="headrace:running", kind=_G, labels=("model_name",), doc="Sequences running.")
WAITING = Metric(name="headrace:waiting", kind=_G, labels=("model_name",), doc="Requests in the queue.")
KV_USAGE = Metric(name="headrace:kv_usage_ratio", kind=_G, labels=("model_name",), doc="KV blocks in use, 0 to 1.")
CONFIG_GENERATION = Metric(
    name="headrace:config_generation", kind=_G, labels=("model_name",), doc="Generation of the config in force."
)
CONFIG_INFO = Metric(
    name="headrace:config_info",
    kind=_G,
    labels=(*DECISION_LABELS, "knob", "value"),
    doc="1 for each hot knob's value in force.",
)
ENGINE_INFO = Metric(
    name="headrace:engine_info",
    kind=_G,
    labels=("model_name", "version", "device", "dtype", "pretend_gpu"),
    doc="1. What runs where; pretend_gpu is true where the allotted GPU is a stand-in and the CPU does the work.",
)
START_TIME = Metric(
    name="headrace:start_time_seconds", kind=_G, labels=("model_name",), doc="Unix time at which the engine started."
)

VLLM_TTFT = Metric(
    name="vllm:time_to_first_token_seconds", kind=_H, labels=VLLM_LABELS, buckets=TTFT_BUCKETS, slo="ttft",
    doc="Time to first token.",
)  # fmt: skip
VLLM_ITL = Metric(
    name="vllm:inter_token_latency_seconds", kind=_H, labels=VLLM_LABELS, buckets=ITL_BUCKETS, slo="itl",
    doc="Inter-token latency, each gap.",
)  # fmt: skip
VLLM_TPOT = Metric(
    name="vllm:request_time_per_output_token_seconds", kind=_H, labels=VLLM_LABELS, buckets=ITL_BUCKETS, slo="tpot",
    doc="Time per output token of one request.",
)  # fmt: skip
VLLM_E2E = Metric(
    name="vllm:e2e_request_latency_seconds", kind=_H, labels=VLLM_LABELS, buckets=E2E_BUCKETS, slo="e2e",
    doc="End-to-end latency.",
)  # fmt: skip
VLLM_QUEUE = Metric(
    name="vllm:request_queue_time_seconds", kind=_H, labels=VLLM_LABELS, buckets=E2E_BUCKETS, doc="Time in the queue."
)
VLLM_RUNNING = Metric(name="vllm:num_requests_running", kind=_G, labels=VLLM_LABELS, doc="Requests running.")
VLLM_WAITING = Metric(name="vllm:num_requests_waiting", kind=_G, labels=VLLM_LABELS, doc="Requests waiting.")
VLLM_KV_USAGE = Metric(name="vllm:kv_cache_usage_perc", kind=_G, labels=VLLM_LABELS, doc="KV usage; 1 is full.")
VLLM_PREEMPTIONS = Metric(name="vllm:num_preemptions", kind=_C, labels=VLLM_LABELS, doc="Preemptions.")
VLLM_PROMPT_TOKENS = Metric(name="vllm:prompt_tokens", kind=_C, labels=VLLM_LABELS, doc="Prompt tokens.")
VLLM_GENERATION_TOKENS = Metric(name="vllm:generation_tokens", kind=_C, labels=VLLM_LABELS, doc="Generated tokens.")
VLLM_SUCCESS = Metric(
    name="vllm:request_success", kind=_C, labels=(*VLLM_LABELS, "finished_reason"), doc="Finished requests."
)
VLLM_CACHE_INFO = Metric(
    name="vllm:cache_config_info",
    kind=_G,
    labels=(*VLLM_LABELS, "block_size", "num_gpu_blocks", "gpu_memory_utilization"),
    doc="KV cache configuration.",
)

ALL_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
