"""The knob table: the one source of CLI flags, CRD fields, tuner space, admin API and docs.

Nothing here does I/O. `resolve` builds a full `EngineConfig` from what a person set, `reconfigure` changes
hot knobs of one; both either return a valid config or raise `ConfigError` with every problem found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

KnobValue = int | float | bool | str | None


class KnobClass(StrEnum):
    """What it takes to change a knob of a running engine."""

    HOT = "hot"  # between two steps
    DRAIN = "drain"  # drain and re-allocate
    RESTART = "restart"  # a new process


class Kind(StrEnum):
    """Type of a knob's value."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One row of the table. `default=None` means computed (by device, model or another knob; see `doc`)."""

    name: str
    kind: Kind
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
        if self.kind is Kind.CHOICE:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}, got {value!r}"
        if self.kind is Kind.BOOL:
            return None if isinstance(value, bool) else f"must be true or false, got {value!r}"
        allowed = (int,) if self.kind is Kind.INT else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            what = "a whole number" if self.kind is Kind.INT else "a number"
            return f"must be {what}, got {value!r}"
        return None


HOT, DRAIN, RESTART = KnobClass.HOT, KnobClass.DRAIN, KnobClass.RESTART

KNOBS: tuple[Knob, ...] = (
    Knob(
        name="max_num_seqs",
        kind=Kind.INT,
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
        kind=Kind.INT,
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
        kind=Kind.BOOL,
        default=True,
        klass=HOT,
        doc="Off: a prompt is prefilled whole, in one step, even where that exceeds the token budget.",
    ),
    Knob(
        name="prefill_chunk_size",
        kind=Kind.INT,
        default=None,
        klass=HOT,
        minimum=1,
        maximum=1_048_576,
        unit="tokens",
        doc="Largest slice of one prompt in one step. Default: the token budget.",
    ),
    Knob(
        name="decode_ratio",
        kind=Kind.FLOAT,
        default=0.0,
        klass=HOT,
        minimum=0.0,
        below=1.0,
        doc="Share of the step's budget that prefill may not use while any sequence decodes; 1 token is always left.",
    ),
    Knob(
        name="preemptible",
        kind=Kind.BOOL,
        default=True,
        klass=HOT,
        doc="A long prefill may be interrupted between chunks by other prefills and evicted under KV pressure. "
        "Off: its chunks run back to back (decodes still interleave) and it is never evicted in prefill.",
    ),
    Knob(
        name="max_num_partial_prefills",
        kind=Kind.INT,
        default=4,
        klass=HOT,
        minimum=1,
        maximum=4096,
        unit="prompts",
        doc="Prompts that may be part prefilled between two steps; one prefilled whole in one step does not count.",
    ),
    Knob(
        name="long_prefill_token_threshold",
        kind=Kind.INT,
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
        kind=Kind.CHOICE,
        default="fcfs",
        klass=HOT,
        choices=("fcfs", "priority"),
        doc="Order of the waiting queue: arrival, or (priority, arrival) with the lower value first.",
    ),
    Knob(
        name="priority_ageing_seconds",
        kind=Kind.FLOAT,
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
        kind=Kind.INT,
        default=1024,
        klass=HOT,
        minimum=0,
        maximum=1_000_000,
        unit="requests",
        doc="Waiting requests, beyond the free places in the batch, from which on new ones get 429.",
    ),
    Knob(
        name="max_queue_tokens",
        kind=Kind.INT,
        default=None,
        klass=HOT,
        minimum=1,
        maximum=2_000_000_000,
        unit="tokens",
        doc="Waiting prompt tokens beyond which new requests get 429. Default: no limit.",
    ),
    Knob(
        name="batching",
        kind=Kind.CHOICE,
        default="continuous",
        klass=RESTART,
        choices=("continuous", "static"),
        doc="static is the baseline: a batch is filled, runs until its last sequence ends, nobody joins.",
    ),
    Knob(
        name="block_size",
        kind=Kind.INT,
        default=16,
        klass=RESTART,
        minimum=1,
        maximum=256,
        unit="tokens",
        doc="Tokens in one KV block.",
    ),
    Knob(
        name="gpu_memory_utilization",
        kind=Kind.FLOAT,
        default=0.92,
        klass=DRAIN,
        minimum=0.05,
        maximum=1.0,
        doc="Share of the GPU's memory for weights and KV blocks. On a CPU see kv_cache_bytes.",
    ),
    Knob(
        name="kv_cache_bytes",
        kind=Kind.INT,
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
        kind=Kind.BOOL,
        default=True,
        klass=RESTART,
        doc="Keep the KV blocks of prompts and outputs that have ended, for requests that begin with the same tokens.",
    ),
    Knob(
        name="kv_cache_dtype",
        kind=Kind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=("auto", "float32", "bfloat16", "float16"),
        doc="Number format of KV blocks; auto is the model's.",
    ),
    Knob(
        name="max_model_len",
        kind=Kind.INT,
        default=None,
        klass=RESTART,
        minimum=1,
        maximum=16_777_216,
        unit="tokens",
        doc="Longest prompt plus output. Default: the model's own limit, or what the KV blocks hold if that is less.",
    ),
    Knob(
        name="dtype",
        kind=Kind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=("auto", "float32", "bfloat16", "float16"),
        doc="auto takes what the device does fast: bfloat16 on GPUs and on CPUs with AVX512-BF16 or AMX, else float32.",
    ),
    Knob(
        name="seed",
        kind=Kind.INT,
        default=0,
        klass=RESTART,
        minimum=0,
        maximum=2**53,
        doc="Seed of sampled requests that bring none.",
    ),
    Knob(
        name="attention_backend",
        kind=Kind.CHOICE,
        default="auto",
        klass=RESTART,
        choices=("auto", "sdpa"),
        doc="Kernel behind the attention interface.",
    ),
)

KNOB_BY_NAME: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}
KNOB_BY_CAMEL: Mapping[str, Knob] = {knob.camel: knob for knob in KNOBS}
HOT_KNOBS: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.klass is HOT)
CAPPED_KNOBS: tuple[Knob, ...] = tuple(knob for knob in KNOBS if knob.capped_at_boot)

DEFAULT_TOKEN_BUDGET: Mapping[str, int] = {"cuda": 8192, "cpu": 256}


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a config is refused: where (`knob`), why and what would be right (`message`)."""

    knob: str
    message: str

    def __str__(self) -> str:
        return f"{self.knob}: {self.message}"


class ConfigError(ValueError):
    """A config that is not valid. Nothing was changed. `problems` lists every reason."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Full effective config: one field per row of `KNOBS`, and the ceilings of the capped ones."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 256
    enable_chunked_prefill: bool = True
    prefill_chunk_size: int | None = None
    decode_ratio: float = 0.0
    preemptible: bool = True
    max_num_partial_prefills: int = 4
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    priority_ageing_seconds: float = 60.0
    max_queue_len: int = 1024
    max_queue_tokens: int | None = None
    batching: str = "continuous"
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    dtype: str = "auto"
    seed: int = 0
    attention_backend: str = "auto"
    ceilings: Mapping[str, int] = field(default_factory=dict)

    @property
    def chunk(self) -> int:
        """Largest slice of one prompt in one step, in tokens, with the default filled in."""
        return self.max_num_batched_tokens if self.prefill_chunk_size is None else self.prefill_chunk_size

    def values(self) -> dict[str, KnobValue]:
        """The knobs alone, by name, without the ceilings."""
        return {knob.name: getattr(self, knob.name) for knob in KNOBS}

    def hot_values(self) -> dict[str, KnobValue]:
        """The hot knobs alone, by name."""
        return {knob.name: getattr(self, knob.name) for knob in HOT_KNOBS}


def spelled(value: object) -> str:
    """A knob's value as JSON spells it, and as the config metric has it; empty for none."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def resolve(
    values: Mapping[str, object], *, device: str = "cpu", ceilings: Mapping[str, int] | None = None
) -> EngineConfig:
    """Fill in defaults and check every rule.

    `values` maps knob names (snake_case) to values; `device` is "cpu" or "cuda"; `ceilings` gives boot values of
    capped knobs where they are higher than the active value. Raises `ConfigError`.
    """
    _raise_if(_value_problems(values) + _ceiling_problems(ceilings or {}))
    filled = {knob.name: knob.default for knob in KNOBS} | dict(values)
    budget, seqs = filled["max_num_batched_tokens"], filled["max_num_seqs"]
    if "max_num_seqs" not in values and isinstance(budget, int) and isinstance(seqs, int):
        # A person who lowers only the budget means as many sequences as it can carry.
        filled["max_num_seqs"] = min(seqs, budget)
    if filled["max_num_batched_tokens"] is None:
        filled["max_num_batched_tokens"] = _default_budget(filled, device, ceilings or {})
    config = EngineConfig(**filled)  # type: ignore[arg-type]
    caps = {knob.name: getattr(config, knob.name) for knob in CAPPED_KNOBS} | dict(ceilings or {})
    config = replace(config, ceilings=caps)
    _raise_if(_rule_problems(config))
    return config


def reconfigure(config: EngineConfig, changes: Mapping[str, object]) -> EngineConfig:
    """Return `config` with the hot knobs in `changes` set; all of them or none. Raises `ConfigError`."""
    problems = list(_value_problems(changes))
    for name, value in changes.items():
        knob = KNOB_BY_NAME.get(name)
        if value is None and name == "max_num_batched_tokens":
            problems.append(Problem(name, "must be a number: its default is computed only when the engine starts"))
        if knob is not None and knob.klass is not HOT:
            needs = "a drained engine" if knob.klass is DRAIN else "a new process"
            problems.append(
                Problem(name, f"cannot change while the engine runs (class {knob.klass}): it needs {needs}")
            )
    _raise_if(problems)
    changed = replace(config, **dict(changes))  # type: ignore[arg-type]
    _raise_if(_rule_problems(changed))
    return changed


def _default_budget(filled: Mapping[str, object], device: str, ceilings: Mapping[str, int]) -> int:
    # A person who sets only the chunk or the sequence cap means a budget that holds them.
    floor = max(int(filled["max_num_seqs"] or 1), int(filled["prefill_chunk_size"] or 1))  # type: ignore[call-overload]
    ceiling = ceilings.get("max_num_batched_tokens")
    wanted: int = max(DEFAULT_TOKEN_BUDGET.get(device, DEFAULT_TOKEN_BUDGET["cpu"]), floor)
    return wanted if ceiling is None else min(wanted, ceiling)


def _value_problems(values: Mapping[str, object]) -> list[Problem]:
    problems = []
    for name, value in values.items():
        knob = KNOB_BY_NAME.get(name)
        if knob is None:
            problems.append(Problem(name, "is not a knob of this engine; GET /admin/config lists them"))
            continue
        why = knob.problem(value)
        if why:
            problems.append(Problem(name, why))
    return problems


def _ceiling_problems(ceilings: Mapping[str, int]) -> list[Problem]:
    problems = []
    for name, value in ceilings.items():
        knob = KNOB_BY_NAME.get(name)
        if knob is None or not knob.capped_at_boot:
            known = ", ".join(capped.name for capped in CAPPED_KNOBS)
            problems.append(Problem(name, f"has no ceiling: only {known} can be capped"))
        elif value is None or knob.problem(value):
            problems.append(Problem(name, f"its ceiling {knob.problem(value) or 'must be a number'}"))
    return problems


def _rule_problems(config: EngineConfig) -> list[Problem]:
    """Rules between knobs. The CRD's CEL rules say the same; a contract test holds both to it."""
    problems = []
    budget = config.max_num_batched_tokens
    if config.enable_chunked_prefill and config.chunk > budget:
        problems.append(
            Problem(
                "prefill_chunk_size",
                f"{config.chunk} exceeds max_num_batched_tokens {budget}: lower the chunk or raise the budget",
            )
        )
    if config.max_num_seqs > budget:
        problems.append(
            Problem(
                "max_num_batched_tokens",
                f"{budget} is less than max_num_seqs {config.max_num_seqs}: every running sequence needs one token "
                "of the budget in each step; raise the budget or lower max_num_seqs",
            )
        )
    for name, ceiling in config.ceilings.items():
        value = getattr(config, name)
        if value > ceiling:
            problems.append(
                Problem(name, f"{value} exceeds the boot value {ceiling}: restart the engine with a higher {name}")
            )
    return problems


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _raise_if(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(tuple(problems))
