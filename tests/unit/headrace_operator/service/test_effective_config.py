"""The order of precedence, defaults < proposal < spec, and its one exception."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_resources import service

from headrace_api.v1alpha1.inferenceservice import InferenceService
from headrace_core.knobs.resolve import ConfigError
from headrace_core.knobs.table import HOT_KNOBS, KNOBS, KnobKind
from headrace_operator.engines.headrace import HeadraceEngine
from headrace_operator.rollout.revisions import (
    ActiveRevision,
    RevisionState,
)
from headrace_operator.service.effective_config import KnobSource, effective_config


def of(gpus: int = 0, **config: Any) -> InferenceService:
    return InferenceService.parse(service(engine={"config": config}, resources={"gpu": {"count": gpus}}))


def proposal(knobs: dict[str, Any], **more: Any) -> ActiveRevision:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    return ActiveRevision(
        tuning_run="tune", run_uid="u", state=RevisionState.KEPT, knobs=knobs, applied_at=when, **more
    )  # fmt: skip


def test_a_proposal_sets_only_knobs_that_are_not_pinned() -> None:
    config = effective_config(of(decodeRatio=0.25), proposal({"decode_ratio": 0.5, "prefill_chunk_size": 64}))
    assert config.wanted.values == {"prefill_chunk_size": 64, "decode_ratio": 0.25}
    assert config.sources["prefill_chunk_size"] is KnobSource.TUNED
    assert config.sources["decode_ratio"] is KnobSource.SPEC
    assert config.sources["block_size"] is KnobSource.DEFAULT


@pytest.mark.parametrize(("pinned_now", "expected"), [(0.25, 0.5), (0.3, 0.3)])
def test_an_override_holds_as_long_as_the_spec_says_what_it_overrode(pinned_now: float, expected: float) -> None:
    record = proposal({"decode_ratio": 0.5}, override_pinned=True, pinned={"decode_ratio": 0.25})
    assert effective_config(of(decodeRatio=pinned_now), record).wanted.values["decode_ratio"] == expected


def test_a_proposal_that_no_longer_fits_is_left_out_and_named() -> None:
    config = effective_config(of(maxNumBatchedTokens=32, maxNumSeqs=8), proposal({"prefill_chunk_size": 64}))
    assert "prefill_chunk_size" not in config.wanted.values
    assert "TuningRun tune" in config.ignored


def test_what_the_spec_pins_must_be_valid_by_itself() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs 200"):
        effective_config(of(maxNumBatchedTokens=100, maxNumSeqs=200), None)


@pytest.mark.parametrize(
    ("gpus", "config", "seqs", "tokens"),
    [
        (0, {}, 256, 2048),
        (1, {}, 256, 8192),
        (0, {"maxNumSeqs": 512}, 512, 2048),
        (1, {"maxNumBatchedTokens": 64}, 256, 8192),
    ],
)
def test_ceilings_are_the_larger_of_default_and_spec(gpus: int, config: dict[str, Any], seqs: int, tokens: int) -> None:
    assert effective_config(of(gpus, **config), None).wanted.ceilings == {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
    }


def test_hot_defaults_follow_the_engines_device_and_boot_config_has_no_hot_knob() -> None:
    config = effective_config(of(1, blockSize=32, decodeRatio=0.5), None)
    assert config.wanted.hot("cuda")["max_num_batched_tokens"] == 8192
    assert config.wanted.hot("cpu")["max_num_batched_tokens"] == 256
    assert HeadraceEngine().boot_values(config.wanted)["config"] == {"block_size": 32}


def test_the_revision_follows_every_value() -> None:
    revisions = {
        effective_config(of(**config), None).wanted.revision for config in ({}, {"decodeRatio": 0.5}, {"seed": 1})
    }
    assert len(revisions) == 3


HOT_VALUES = {
    KnobKind.INT: st.integers(1, 16),
    KnobKind.FLOAT: st.floats(0, 0.9),
    KnobKind.BOOL: st.booleans(),
    KnobKind.CHOICE: st.sampled_from(["fcfs", "priority"]),
}
SOME_KNOBS = st.fixed_dictionaries({}, optional={knob.name: HOT_VALUES[knob.kind] for knob in HOT_KNOBS})


@given(SOME_KNOBS, SOME_KNOBS)
def test_every_knob_has_one_value_and_one_source(pinned: dict[str, Any], proposed: dict[str, Any]) -> None:
    by_name = {knob.name: knob.camel for knob in KNOBS}
    subject = of(**{by_name[name]: value for name, value in pinned.items()})
    try:
        config = effective_config(subject, proposal(proposed))
    except ConfigError:
        return
    for name, value in pinned.items():
        assert config.wanted.values[name] == value
    assert set(config.sources) == set(by_name)
    assert config.wanted.config().values().keys() == set(by_name)
