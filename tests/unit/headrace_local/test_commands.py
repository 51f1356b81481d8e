"""`headrace local`: errors are shown in a panel with what to do; exit codes."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace_core.sim.calibration import CalibrationError
from headrace_local import cluster, commands
from headrace_local.errors import LocalError

runner = CliRunner()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(commands, "out", Console(width=200, highlight=False))
    monkeypatch.setattr(commands, "err", Console(width=200, highlight=False))


def test_status_where_there_is_no_cluster():
    result = runner.invoke(commands.app, ["status", "--slot", "61"])
    assert result.exit_code == 3
    assert "headrace local up --slot 61" in result.output


def test_down_where_there_is_no_cluster_is_fine_twice():
    for _ in range(2):
        result = runner.invoke(commands.app, ["down", "--slot", "61"])
        assert result.exit_code == 0, result.output
        assert "nothing to take down" in result.output


def test_a_slot_that_does_not_exist_is_wrong_usage():
    result = runner.invoke(commands.app, ["status", "--slot", "1000"])
    assert result.exit_code == 2
    assert "--slot takes 0 to 78" in result.output


def test_kubectl_without_a_cluster_says_how_to_start_one():
    result = runner.invoke(commands.app, ["kubectl", "--slot", "61", "--", "get", "pods"])
    assert result.exit_code == 1
    assert "headrace local up --slot 61" in result.output


def test_an_error_shows_what_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch):
    error = LocalError("etcd ended.", why="Its log:", detail="[red]bind: address in use[/]", todo="Free the port.")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cluster, "up", fail)
    result = runner.invoke(commands.app, ["up"])
    assert result.exit_code == 1
    for part in ("etcd ended.", "Its log:", "[red]bind: address in use[/]", "What to do: Free the port."):
        assert part in result.output


def test_an_error_of_another_part_is_shown_too(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise CalibrationError("steps.json: has no table of step times")

    monkeypatch.setattr(cluster, "up", fail)
    result = runner.invoke(commands.app, ["up"])
    assert result.exit_code == 1
    assert "steps.json: has no table of step times" in result.output


def test_binaries_lists_every_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(commands.programs, "ensure", lambda *_: None)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    result = runner.invoke(commands.app, ["binaries"])
    assert result.exit_code == 0, result.output
    for name in ("etcd", "kube-apiserver", "kubelet", "helm", "prometheus"):
        assert name in result.output
