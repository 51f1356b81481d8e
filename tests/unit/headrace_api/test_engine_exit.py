"""The operator reads the exit message that an engine wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_api.engine_exit import MAX_MESSAGE, EngineExit, ExitKind, read_engine_exit


@given(st.sampled_from(ExitKind), st.text(max_size=MAX_MESSAGE))
def test_an_exit_message_survives_the_round_trip(kind: ExitKind, message: str) -> None:
    assert read_engine_exit(EngineExit(kind, message).to_text()) == EngineExit(kind, message)


@pytest.mark.parametrize("letter", ["x", "ü", "\x00", "🌊", '"'])
def test_a_long_message_is_cut_to_what_the_kubelet_keeps(letter: str) -> None:
    text = EngineExit(ExitKind.MODEL, letter * 10_000).to_text()
    assert len(text.encode()) < 4096
    assert read_engine_exit(text) is not None


@pytest.mark.parametrize(
    "text", ["", "Traceback ...\nKeyError: 'x'", "{}", "[]", "3", '{"message": 3}', '{"kind": "Model"']
)
def test_other_text_is_not_an_exit_message(text: str) -> None:
    assert read_engine_exit(text) is None


@pytest.mark.parametrize("kind", ['"FromTheFuture"', "null", "{}", "[1]"])
def test_an_unknown_kind_keeps_its_message(kind: str) -> None:
    assert read_engine_exit(f'{{"kind": {kind}, "message": "m"}}') == EngineExit(ExitKind.OTHER, "m")
