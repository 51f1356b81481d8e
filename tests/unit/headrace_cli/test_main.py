"""The root command lists everything without importing it, and every entry of its tables exists."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_cli import bench, explain, main
from headrace_cli.lazy import LazyCommand, load


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headrace_cli", *args], capture_output=True, text=True, check=False)


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom headrace_cli.main import app\n"
        "out = CliRunner().invoke(app, ['--help']).output\n"
        "print(out)\nprint([m for m in sys.modules if m.startswith('headrace_') and 'cli' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in main.COMMANDS)
    assert done.stdout.strip().endswith("[]")


GROUPS = {"bench": bench.BENCHES, "explain": explain.EXPLAINS}
PATHS = [(name,) for name in main.COMMANDS] + [(group, name) for group, table in GROUPS.items() for name in table]


NEEDS_MORE = {("local",): pytest.mark.local, ("serve",): pytest.mark.engine, ("model",): pytest.mark.engine}


@pytest.mark.parametrize("path", [pytest.param(path, marks=NEEDS_MORE.get(path, ())) for path in PATHS])
def test_every_entry_has_help(path: tuple[str, ...]) -> None:
    done = run(*path, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    with pytest.raises(typer.Exit) as caught:
        load("tune", LazyCommand("no_such_library_at_all:app", "tuner", ""))
    assert caught.value.exit_code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "no_such_library_at_all" in message
    assert "headrace[tuner]" in message


@pytest.mark.parametrize("arguments", [("chat",), ("-n", "ns", "chat"), ("service", "chat"), ("service", "request")])
def test_a_service_is_explained_with_and_without_its_word(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run("explain", *arguments, "--context", "no-such-context")
    assert done.returncode == 1, "the command ran, and found no cluster"
    assert str(tmp_path) in "".join(done.stderr.split())


def test_explain_without_anything_lists_what_can_be_explained() -> None:
    for arguments in ((), ("--help",)):
        done = run("explain", *arguments)
        assert "request" in done.stdout + done.stderr
        assert "service" in done.stdout + done.stderr


def test_an_unknown_command_is_an_error() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
