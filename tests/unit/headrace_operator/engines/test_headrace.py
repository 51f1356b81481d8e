"""Headrace's engine: its knobs, its config file, and how its exit is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_api.engine_exit import EngineExit, ExitKind
from headrace_core.knobs.table import KNOBS
from headrace_operator.cluster.observe import LastExit
from headrace_operator.engines.base import WantedConfig
from headrace_operator.engines.headrace import HeadraceEngine

ENGINE = HeadraceEngine()
VALUES = st.dictionaries(
    st.sampled_from([knob.name for knob in KNOBS]), st.none() | st.booleans() | st.integers() | st.text(max_size=5)
)


def wanted(values: dict[str, Any]) -> WantedConfig:
    return WantedConfig(values=values, ceilings={"max_num_seqs": 8}, slo=None, on_gpu=False, revision="r")


@given(VALUES)
def test_the_config_file_survives_the_round_trip(values: dict[str, Any]) -> None:
    data = ENGINE.config_data(wanted(values))
    assert ENGINE.config_values(data) == values
    assert json.loads(data["engine.json"]) == {
        "revision": "r",
        "config": values,
        "ceilings": {"max_num_seqs": 8},
        "slo": None,
    }


@given(VALUES)
def test_the_same_config_is_the_same_text(values: dict[str, Any]) -> None:
    backwards = dict(reversed(list(values.items())))
    assert ENGINE.config_data(wanted(values)) == ENGINE.config_data(wanted(backwards))


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_every_knob_of_the_table_is_one_of_the_engines(knob: Any) -> None:
    assert ENGINE.knob_class(knob.name) is knob.klass


def test_a_knob_that_is_in_no_table_is_not_the_engines() -> None:
    assert ENGINE.knob_class("tensor_parallel_size") is None


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (EngineExit(ExitKind.MODEL, "bad weights").to_text(), EngineExit(ExitKind.MODEL, "bad weights")),
        ("model /x does not exist", EngineExit(ExitKind.OTHER, "model /x does not exist")),
        ("Traceback:\n  File\nKeyError", EngineExit(ExitKind.OTHER, "KeyError")),
        ("", EngineExit(ExitKind.OTHER, "")),
    ],
)
def test_the_text_of_a_message_decides_nothing(message: str, said: EngineExit) -> None:
    assert ENGINE.exit(LastExit(code=1, reason="Error", message=message)) == said
