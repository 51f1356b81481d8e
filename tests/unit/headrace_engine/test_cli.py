"""How the command line ends when something is wrong that a person can mend."""

from pathlib import Path

import pytest

from headrace_api.engine_exit import EngineExit, ExitKind, read_engine_exit
from headrace_engine.cli import write_termination_log
from headrace_engine.errors import EngineError, ModelError, ModelNotFoundError, SettingsError
from headrace_engine.model.weights import find_source


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelNotFoundError, ExitKind.MODEL_NOT_FOUND),
        (ModelError, ExitKind.MODEL),
        (SettingsError, ExitKind.SETTINGS),
        (EngineError, ExitKind.OTHER),
    ],
)
def test_an_error_is_told_with_its_kind(tmp_path: Path, error: type[EngineError], kind: ExitKind) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    write_termination_log(error("what is wrong"), log)
    assert read_engine_exit(log.read_text()) == EngineExit(kind, "what is wrong")


def test_a_path_that_is_no_unicode_is_still_told(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    write_termination_log(ModelNotFoundError("model /\udcff"), log)
    assert read_engine_exit(log.read_text()) == EngineExit(ExitKind.MODEL_NOT_FOUND, "model /?")


def test_outside_a_pod_nothing_is_written(tmp_path: Path) -> None:
    write_termination_log(SettingsError("x"), tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_there_has_its_own_kind(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        find_source(str(tmp_path / "nowhere"))
