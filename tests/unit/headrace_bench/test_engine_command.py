"""One command of the engine: what it prints, what it says meanwhile, and why it failed."""

import importlib.util

import pytest

from headrace_bench.engine_command import engine_command
from headrace_bench.errors import BenchError


@pytest.mark.engine
async def test_a_command_that_fails_says_its_words() -> None:
    with pytest.raises(BenchError, match=r"(?s)headrace_engine no-such-command failed:\n.*No such command"):
        await engine_command("no-such-command")


@pytest.mark.engine
async def test_lines_that_were_taken_are_not_repeated_and_unread_input_does_no_harm() -> None:
    seen: list[str] = []

    def take(line: str) -> bool:
        seen.append(line)
        return "No such command" in line

    with pytest.raises(BenchError) as caught:
        await engine_command("no-such-command", given="x" * 1_000_000, seen=take)
    assert any("No such command" in line for line in seen)
    assert "No such command" not in str(caught.value)
    assert "Usage" in str(caught.value)


@pytest.mark.engine
async def test_output_comes_back() -> None:
    assert "Usage" in await engine_command("--help")


async def test_without_the_engines_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BenchError, match=r"pip install 'headrace\[engine\]'"):
        await engine_command("--help")
