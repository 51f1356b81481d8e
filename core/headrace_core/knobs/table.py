"""The knob table: the one source of CLI flags, CRD fields, tuner space, admin API and docs.

A row says a knob's type, default, bounds and class; `resolve.py` makes full configs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KnobValue = int | float | bool | str | None

AUTO = "auto"  # of choices: by device, model and machine
ATTENTION_BACKENDS = ("sdpa",)  # fastest first, so auto takes the first that can run a model


class KnobClass(StrEnum):
    """What it takes to change a knob of a running engine."""

    HOT = "hot"  # between two steps
    DRAIN = "drain"  # drain and re-allocate
    RESTART = "restart"  # a new process


class KnobKind(StrEnum):
    """Type of a knob's value."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One row of the table. `default=None` means computed (by device, model or another knob; see `doc`)."""

    name: str
    kind: KnobKind
    default: KnobValue
    klass: KnobClass
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None  # exclusive upper bound
    choices: tuple[str, ...] = ()
    capped_at_boot: bool = False  # hot only up to the value that the process was started with

    @property
    def camel(self) -> str:
        """Field name in the custom resource."""
        head, *rest = self.name.split("_")
        return head + "".join(part.capitalize() for part in rest)

    @property
    def flag(self) -> str:
        """Command-line flag."""
        return "--" + self.name.replace("_", "-")

    def problem(self, value: object) -> str | None:
        """Why `value` is not allowed for this knob alone, or None."""
        if value is None:
            return None if self.default is None else "must not be null"
        wrong_type = self._type_problem(value)
        if wrong_type or not isinstance(value, (int, float)) or isinstance(value, bool):
            return wrong_type
        return self._range_problem(value)

    def _range_problem(self, number: int | float) -> str | None:
        # An int is compared as it is: float() of a huge one would raise.
        if isinstance(number, float) and not math.isfinite(number):
            return f"must be finite, got {number}"
        if self.minimum is not None and number < self.minimum:
            return f"must be at least {_plain(self.minimum)}, got {number}"
        if self.maximum is not None and number > self.maximum:
            return f"must be at most {_plain(self.maximum)}, got {number}"
        if self.below is not None and number >= self.below:
            return f"must be below {_plain(self.below)}, got {number}"
        return None

    def _type_problem(self, value: object) -> str | None:
        if self.kind is KnobKind.CHOICE:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}, got {value!r}"
        if self.kind is KnobKind.BOOL:
            return None if isinstance(value, bool) else f"must be true or false, got {value!r}"
        allowed = (int,) if self.kind is KnobKind.INT else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            what = "a whole number" if self.kind is KnobKind.INT else "a number"
            return f"must be {what}, got {value!r}"
        return None


HOT, DRAIN, RESTART = KnobClass.HOT, KnobClass.DRAIN, KnobClass.RESTART

KNOBS: tuple[Knob, ...] = (
    Knob(
        name="max_num_seqs",
        kind=KnobKind.INT,
        default=256,
        klass=HOT,
        minimum=1,
        maximum=4096,
        capped_at_boot=True,
        unit="sequences",
        doc="Sequences that may run at once.",
    ),
    Knob(
        name="max_num_batched_tokens",
        kind=KnobKind.INT,
        default=None,
        klass=HOT,
        minimum=1,
        maximum=1_048_576,
        capped_at_boot=True,
        unit="tokens",
        doc="Token budget of one step. Default by device: GPU 8192, CPU 256.",
    ),
    Knob(
        name="enable_chunked_prefill",
        kind=KnobKind.BOOL,
        default=True,
        klass=HOT,
        doc="Off: a prompt is prefilled whole, in one step, even where that exceeds the token budget.",
    ),
    Knob(
        name="prefill_chunk_size",
        kind=KnobKind.INT,
        default=None,
        klass=HOT,
        minimum=1,
        maximum=1_048_576,
        unit="tokens",
        doc="Largest slice of one prompt in one step. Default: the token budget.",
    ),
    Knob(
        name="decode_ratio",
        kind=KnobKind.FLOAT,
        default=0.0,
        klass=HOT,
        minimum=0.0,
        below=1.0,
        doc="Share of the step's budget that prefill may not use while any sequence decodes; 1 token is always left.",
    ),
    Knob(
        name="preemptible",
        kind=KnobKind.BOOL,
        default=True,
        klass=HOT,
        doc="A long prefill may be interrupted between chunks by other prefills and evicted under KV pressure. "
        "Off: its chunks run back to back (decodes still interleave) and it is never evicted in prefill.",
    ),
    Knob(
        name="max_num_partial_prefills",
        kind=KnobKind.INT,
        default=4,
        klass=HOT,
        minimum=1,
        maximum=4096,
        unit="prompts",
        doc="Prompts that may be part prefilled between two steps; one prefilled whole in one step does not count.",
    ),
    Knob(
        name="long_prefill_token_threshold",
        kind=KnobKind.INT,
        default=0,
        klass=HOT,
        minimum=0,
        maximum=1_048_576,
        unit="tokens",
        doc="A prompt longer than this counts as long; only one long prompt is in prefill at a time, and shorter ones "
        "pass those that wait for it. 0: none is long.",
    ),
    Knob(
        name="scheduling_policy",
        kind=KnobKind.CHOICE,
        default="fcfs",
        klass=HOT,
        choices=("fcfs", "priority"),
        doc="Order of the waiting queue: arrival, or (priority, arrival) with the lower value first.",
    ),
    Knob(
        name="priority_ageing_seconds",
        kind=KnobKind.FLOAT,
        default=60.0,
        klass=HOT,
        minimum=0.0,
        maximum=86_400.0,
        unit="seconds",
        doc="With the priority policy: waiting this long is worth one level of priority, so that nobody starves. "
        "0: priorities are strict.",
    ),
    Knob(
        name="max_queue_len",
        kind=KnobKind.INT,
        default=1024,
        klass=HOT,
        minimum=0,
        maximum=1_000_000,
        unit="requests",
        doc="Waiting requests, beyond the free places in the batch, from which on new ones get 429.",
    ),
    Knob(
        name="max_queue_tokens",
        kind=KnobKind.INT,
        default=None,
        klass=HOT,
        minimum=1,
        maximum=2_000_000_000,
        unit="tokens",
        doc="Waiting prompt tokens beyond which new requests get 429. Default: no limit.",
    ),
    Knob(
        name="batching",
        kind=KnobKind.CHOICE,
        default="continuous",
        klass=RESTART,
        choices=("continuous", "static"),
        doc="static is the baseline: a batch is filled, runs until its last sequence ends, nobody joins.",
    ),
    Knob(
        name="block_size",
        kind=KnobKind.INT,
        default=16,
        klass=RESTART,
        minimum=1,
        maximum=256,
        unit="tokens",
        doc="Tokens in one KV block.",
    ),
    Knob(
        name="gpu_memory_utilization",
        kind=KnobKind.FLOAT,
        default=0.92,
        klass=DRAIN,
        minimum=0.05,
        maximum=1.0,
        doc="Share of the GPU's memory for weights and KV blocks. On a CPU see kv_cache_bytes.",
    ),
    Knob(
        name="kv_cache_bytes",
        kind=KnobKind.INT,
        default=None,
        klass=DRAIN,
        minimum=65_536,
        maximum=2**53,
        unit="bytes",
        doc="Memory for KV blocks. Default: what gpu_memory_utilization leaves; on a CPU 1 GiB or an eighth of the "
        "memory, whichever is less.",
    ),
    Knob(
        name="enable_prefix_caching",
        kind=KnobKind.BOOL,
        default=True,
        klass=RESTART,
        doc="Keep the KV blocks of prompts and outputs that have ended, for requests that begin with the same tokens.",
    ),
    Knob(
        name="kv_cache_dtype",
        kind=KnobKind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=("auto", "float32", "bfloat16", "float16"),
        doc="Number format of KV blocks; auto is the model's.",
    ),
    Knob(
        name="max_model_len",
        kind=KnobKind.INT,
        default=None,
        klass=RESTART,
        minimum=1,
        maximum=16_777_216,
        unit="tokens",
        doc="Longest prompt plus output. Default: the model's own limit, or what the KV blocks hold if that is less.",
    ),
    Knob(
        name="dtype",
        kind=KnobKind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=("auto", "float32", "bfloat16", "float16"),
        doc="auto takes what the device does fast: bfloat16 on GPUs and on CPUs with AVX512-BF16 or AMX, else float32.",
    ),
    Knob(
        name="seed",
        kind=KnobKind.INT,
        default=0,
        klass=RESTART,
        minimum=0,
        maximum=2**53,
        doc="Seed of sampled requests that bring none.",
    ),
    Knob(
        name="attention_backend",
        kind=KnobKind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=(AUTO, *ATTENTION_BACKENDS),
        doc="Kernel that computes attention. auto takes the fastest that can run the model on the device.",
    ),
)

KNOB_BY_NAME: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}
KNOB_BY_CAMEL: Mapping[str, Knob] = {knob.camel: knob for knob in KNOBS}
HOT_KNOBS: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.klass is HOT)
CAPPED_KNOBS: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.capped_at_boot)

DEFAULT_TOKEN_BUDGET: Mapping[str, int] = {"cuda": 8192, "cpu": 256}


def spelled(value: object) -> str:
    """A knob's value as JSON spells it, and as the config metric has it; empty for none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)
