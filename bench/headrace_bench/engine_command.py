"""Runs an engine command as a subprocess, so that this process imports neither its package nor torch."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable

from headrace_bench.errors import BenchError

TAIL = 2000  # characters of standard error that an error shows
LONGEST_LINE = 1 << 20  # bytes


async def engine_command(*words: str, given: str = "", seen: Callable[[str], bool] = lambda _: False) -> str:
    """Run `python -m headrace_engine WORDS` with `given` on standard input; return its standard output.

    `seen` is called with each line of its standard error as it comes; lines for which it returns True are left out of
    the message if the command fails. Raises `BenchError` with the command's standard error.
    """
    if importlib.util.find_spec("torch") is None:
        raise BenchError(
            "this benchmark runs the engine, whose libraries are not installed: pip install 'headrace[engine]'"
        )
    command = [sys.executable, "-m", "headrace_engine", *words]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LONGEST_LINE)
    try:
        out, err, _ = await asyncio.gather(_read(process), _lines(process, seen), _write(process, given))
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BenchError(f"{' '.join(command)} failed:\n{err[-TAIL:].strip()}")
    return out


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
    return (await process.stdout.read()).decode()


async def _lines(process: asyncio.subprocess.Process, seen: Callable[[str], bool]) -> str:
    assert process.stderr is not None  # noqa: S101
    others: list[str] = []
    async for raw in process.stderr:
        line = raw.decode(errors="replace")
        if not seen(line):
            others.append(line)
    return "".join(others)


async def _write(process: asyncio.subprocess.Process, given: str) -> None:
    assert process.stdin is not None  # noqa: S101
    try:
        process.stdin.write(given.encode())
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended without reading; its exit code and standard error say why
