import math

import pytest

from headrace_core.knobs.resolve import ConfigError, EngineConfig, reconfigure, resolve
from headrace_core.knobs.table import (
    CAPPED_KNOBS,
    HOT_KNOBS,
    KNOB_BY_CAMEL,
    KNOB_BY_NAME,
    KNOBS,
    KnobClass,
    KnobKind,
)
from headrace_core.scheduler.policies import Batching, SchedulingPolicy

GPU = {"device": "cuda"}


def problems_of(error: pytest.ExceptionInfo[ConfigError]) -> dict[str, str]:
    return {problem.knob: problem.message for problem in error.value.problems}


def test_the_table_and_the_config_have_the_same_fields_and_defaults() -> None:
    config = EngineConfig()
    assert set(config.values()) == {knob.name for knob in KNOBS}
    computed = {"max_num_batched_tokens"}
    assert {k.name: k.default for k in KNOBS if k.name not in computed} == {
        name: value for name, value in config.values().items() if name not in computed
    }
    assert set(config.hot_values()) == {knob.name for knob in HOT_KNOBS}


def test_names_are_unique_in_every_spelling_and_every_default_is_valid() -> None:
    assert len(KNOB_BY_NAME) == len(KNOB_BY_CAMEL) == len(KNOBS)
    assert len({knob.flag for knob in KNOBS}) == len(KNOBS)
    for knob in KNOBS:
        assert knob.problem(knob.default) is None
        assert knob.doc.endswith(".")
        assert bool(knob.choices) == (knob.kind is KnobKind.CHOICE)
    knob = KNOB_BY_NAME["max_num_batched_tokens"]
    assert (knob.camel, knob.flag) == ("maxNumBatchedTokens", "--max-num-batched-tokens")
    assert [knob.name for knob in CAPPED_KNOBS] == ["max_num_seqs", "max_num_batched_tokens"]


def test_enums_are_the_choices_of_their_knobs() -> None:
    assert tuple(SchedulingPolicy) == KNOB_BY_NAME["scheduling_policy"].choices
    assert tuple(Batching) == KNOB_BY_NAME["batching"].choices


def test_the_reference_command_line_resolves() -> None:
    config = resolve(
        {
            "gpu_memory_utilization": 0.92,
            "max_num_batched_tokens": 32768,
            "max_num_seqs": 256,
            "enable_chunked_prefill": True,
            "prefill_chunk_size": 4096,
        },
        **GPU,
    )
    assert (config.max_num_batched_tokens, config.chunk) == (32768, 4096)
    assert config.ceilings == {"max_num_seqs": 256, "max_num_batched_tokens": 32768}


def test_the_budget_defaults_by_device_and_holds_what_was_asked_for() -> None:
    assert resolve({}, **GPU).max_num_batched_tokens == 8192
    assert resolve({}).max_num_batched_tokens == 256
    assert resolve({}, device="tpu").max_num_batched_tokens == 256
    assert resolve({"max_num_seqs": 1024}).max_num_batched_tokens == 1024
    assert resolve({"prefill_chunk_size": 512}).max_num_batched_tokens == 512
    assert resolve({}).chunk == 256


def test_lowering_only_the_budget_lowers_the_sequence_cap_with_it() -> None:
    assert resolve({"max_num_batched_tokens": 64}).max_num_seqs == 64
    assert resolve({"max_num_batched_tokens": 4096}).max_num_seqs == 256


def test_contradictions_name_both_numbers_and_the_way_out() -> None:
    with pytest.raises(ConfigError) as error:
        resolve({"max_num_batched_tokens": 64, "prefill_chunk_size": 65, "max_num_seqs": 128})
    found = problems_of(error)
    assert "65 exceeds max_num_batched_tokens 64: lower the chunk or raise the budget" in found["prefill_chunk_size"]
    assert "64 is less than max_num_seqs 128" in found["max_num_batched_tokens"]
    assert str(error.value).count(";") >= 1


def test_without_chunking_the_chunk_size_does_not_matter() -> None:
    resolve({"max_num_batched_tokens": 64, "prefill_chunk_size": 65, "enable_chunked_prefill": False})


@pytest.mark.parametrize(
    ("knob", "value", "why"),
    [
        ("decode_ratio", 1.0, "below 1, got 1.0"),
        ("decode_ratio", -0.1, "at least 0"),
        ("decode_ratio", math.nan, "finite"),
        ("decode_ratio", math.inf, "finite"),
        ("decode_ratio", "0.5", "a number"),
        ("max_num_seqs", 0, "at least 1"),
        ("max_num_seqs", 4097, "at most 4096"),
        ("max_num_seqs", 10**400, "at most 4096"),
        ("max_num_seqs", 2.0, "a whole number"),
        ("max_num_seqs", True, "a whole number"),
        ("max_num_seqs", None, "null"),
        ("max_num_batched_tokens", 2_000_000, "at most 1048576"),
        ("enable_chunked_prefill", 1, "true or false"),
        ("scheduling_policy", "lifo", "one of fcfs, priority"),
        ("scheduling_policy", ["fcfs"], "one of"),
        ("gpu_memory_utilization", 1.01, "at most 1"),
        ("gpu_memory_utilization", 0.01, "at least 0.05"),
        ("max_num_sequences", 4, "not a knob"),
    ],
)
def test_bad_values_say_why(knob: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve({knob: value})
    assert why in problems_of(error)[knob]


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigError) as error:
        resolve({"decode_ratio": 7, "seed": -1, "nonsense": 0}, ceilings={"decode_ratio": 1})
    assert [problem.knob for problem in error.value.problems] == ["decode_ratio", "seed", "nonsense", "decode_ratio"]


def test_ceilings_leave_room_above_the_active_value() -> None:
    config = resolve({"max_num_seqs": 8}, ceilings={"max_num_seqs": 16, "max_num_batched_tokens": 2048})
    assert reconfigure(config, {"max_num_seqs": 16}).max_num_seqs == 16
    with pytest.raises(ConfigError, match="17 exceeds the boot value 16"):
        reconfigure(config, {"max_num_seqs": 17})
    assert reconfigure(config, {"max_num_batched_tokens": 2048}).max_num_batched_tokens == 2048
    with pytest.raises(ConfigError, match="exceeds the boot value 4"):
        resolve({"max_num_seqs": 8}, ceilings={"max_num_seqs": 4})


@pytest.mark.parametrize(
    "ceilings", [{"nonsense": 1}, {"decode_ratio": 1}, {"max_num_seqs": None}, {"max_num_seqs": 0}]
)
def test_bad_ceilings_are_problems_not_crashes(ceilings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"ceiling|capped"):
        resolve({}, ceilings=ceilings)


def test_a_default_budget_stays_below_its_ceiling() -> None:
    assert resolve({"max_num_seqs": 4}, ceilings={"max_num_batched_tokens": 128}).max_num_batched_tokens == 128


def test_reconfigure_changes_hot_knobs_together() -> None:
    config = resolve({"max_num_seqs": 16, "max_num_batched_tokens": 64})
    changed = reconfigure(config, {"max_num_seqs": 4, "max_num_batched_tokens": 8, "prefill_chunk_size": 8})
    assert (changed.max_num_seqs, changed.chunk, changed.ceilings) == (4, 8, config.ceilings)
    assert reconfigure(changed, {"prefill_chunk_size": None}).chunk == 8
    with pytest.raises(ConfigError, match="is less than max_num_seqs"):
        reconfigure(config, {"max_num_batched_tokens": 8})


@pytest.mark.parametrize(
    "knob", [knob for knob in KNOBS if knob.klass is not KnobClass.HOT], ids=lambda knob: knob.name
)
def test_other_knobs_cannot_change_while_running(knob) -> None:
    with pytest.raises(ConfigError) as error:
        reconfigure(resolve({}), {knob.name: getattr(resolve({}), knob.name)})
    needs = "a drained engine" if knob.klass is KnobClass.DRAIN else "a new process"
    assert needs in problems_of(error)[knob.name]


def test_a_budget_cannot_be_reset_to_its_computed_default() -> None:
    with pytest.raises(ConfigError, match="must be a number: its default is computed only when the engine starts"):
        reconfigure(resolve({}), {"max_num_batched_tokens": None})


def test_unknown_knobs_are_refused_by_reconfigure_too() -> None:
    with pytest.raises(ConfigError, match="not a knob"):
        reconfigure(resolve({}), {"nonsense": 1})
