"""From the knobs that were set to a full config, and from one config to the next.

`resolve` builds a full `EngineConfig`, `reconfigure` changes hot knobs of one; both either return a valid config or
raise `ConfigError` with every problem found. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace_core.knobs.table import (
    CAPPED_KNOBS,
    DEFAULT_TOKEN_BUDGET,
    DRAIN,
    HOT,
    HOT_KNOBS,
    KNOB_BY_NAME,
    KNOBS,
    KnobValue,
)


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One reason why a config is refused: where (`knob`), why and what would be right (`message`)."""

    knob: str
    message: str

    def __str__(self) -> str:
        return f"{self.knob}: {self.message}"


class ConfigError(ValueError):
    """A config that is not valid. Nothing was changed. `problems` lists every reason."""

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
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
            problems.append(
                ConfigProblem(name, "must be a number: its default is computed only when the engine starts")
            )
        if knob is not None and knob.klass is not HOT:
            needs = "a drained engine" if knob.klass is DRAIN else "a new process"
            problems.append(
                ConfigProblem(name, f"cannot change while the engine runs (class {knob.klass}): it needs {needs}")
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


def _value_problems(values: Mapping[str, object]) -> list[ConfigProblem]:
    problems = []
    for name, value in values.items():
        knob = KNOB_BY_NAME.get(name)
        if knob is None:
            problems.append(ConfigProblem(name, "is not a knob of this engine; GET /admin/config lists them"))
            continue
        why = knob.problem(value)
        if why:
            problems.append(ConfigProblem(name, why))
    return problems


def _ceiling_problems(ceilings: Mapping[str, int]) -> list[ConfigProblem]:
    problems = []
    for name, value in ceilings.items():
        knob = KNOB_BY_NAME.get(name)
        if knob is None or not knob.capped_at_boot:
            known = ", ".join(capped.name for capped in CAPPED_KNOBS)
            problems.append(ConfigProblem(name, f"has no ceiling: only {known} can be capped"))
        elif value is None or knob.problem(value):
            problems.append(ConfigProblem(name, f"its ceiling {knob.problem(value) or 'must be a number'}"))
    return problems


def _rule_problems(config: EngineConfig) -> list[ConfigProblem]:
    """Rules between knobs. The CRD's CEL rules say the same; a contract test holds both to it."""
    problems = []
    budget = config.max_num_batched_tokens
    if config.enable_chunked_prefill and config.chunk > budget:
        problems.append(
            ConfigProblem(
                "prefill_chunk_size",
                f"{config.chunk} exceeds max_num_batched_tokens {budget}: lower the chunk or raise the budget",
            )
        )
    if config.max_num_seqs > budget:
        problems.append(
            ConfigProblem(
                "max_num_batched_tokens",
                f"{budget} is less than max_num_seqs {config.max_num_seqs}: every running sequence needs one token "
                "of the budget in each step; raise the budget or lower max_num_seqs",
            )
        )
    for name, ceiling in config.ceilings.items():
        value = getattr(config, name)
        if value > ceiling:
            problems.append(
                ConfigProblem(
                    name, f"{value} exceeds the boot value {ceiling}: restart the engine with a higher {name}"
                )
            )
    return problems


def _raise_if(problems: list[ConfigProblem]) -> None:
    if problems:
        raise ConfigError(tuple(problems))
