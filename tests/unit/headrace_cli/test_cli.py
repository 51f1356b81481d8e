"""The root command lists everything without importing it, and every entry of its tables exists."""

import subprocess
import sys

import pytest

from headrace_cli import bench, main
from headrace_cli.lazy import Entry, load


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


@pytest.mark.parametrize(("name", "entry"), [*main.COMMANDS.items(), *bench.BENCHES.items()])
def test_every_entry_has_help(name: str, entry: Entry) -> None:
    del entry
    group = ("bench",) if name in bench.BENCHES else ()
    done = run(*group, name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    with pytest.raises(typer.Exit) as caught:
        load("tune", Entry("no_such_library_at_all:app", "tuner", ""))
    assert caught.value.exit_code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "no_such_library_at_all" in message
    assert "headrace[tuner]" in message


def test_an_unknown_command_is_an_error() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
