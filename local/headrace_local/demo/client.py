"""A user's requests: one streamed chat completion, and a minute of mixed load from `headrace bench serve`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from headrace_local.demo import story as told
from headrace_local.demo.story import Story
from headrace_local.errors import LocalError


async def chat(url: str, model: str, question: str, *, max_tokens: int) -> AsyncIterator[str]:
    """Yield the pieces of a streamed answer. Raises `LocalError` with the server's own message."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        if response.status != 200:
            raise LocalError("The chat completion failed.", why=f"{response.status}: {await response.text()}")
        async for line in response.content:
            piece = _piece(line)
            if piece:
                yield piece


def _piece(line: bytes) -> str:
    text = line.decode().strip()
    if not text.startswith("data: ") or text == "data: [DONE]":
        return ""
    choices = json.loads(text.removeprefix("data: ")).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


async def mixed_load(url: str, story: Story, *, seed: int) -> dict[str, Any]:
    """Send the story's load to `url` with the project's load client; return its summary."""
    options = {
        "--rate": story.rate,
        "--duration": story.mixed_load,
        "--short-prompt-tokens": told.SHORT_PROMPT,
        "--long-prompt-tokens": told.LONG_PROMPT,
        "--long-share": told.LONG_SHARE,
        "--output-tokens": told.OUTPUT_TOKENS,
        "--seed": seed,
        "--json": "-",
    }
    flags = [str(word) for pair in options.items() for word in pair]
    return await _headrace_json("The mixed load", "bench", "serve", url, *flags)


async def calibrate(model: Path, *, threads: int) -> dict[str, Any]:
    """Step times of the engine on this machine with `threads` threads. Raises `LocalError`."""
    return await _headrace_json("The calibration", "bench", "engine", str(model), "--threads", str(threads), "--json")


async def demo_model() -> Path:
    """Folder of the demo model, built if it is missing (`headrace model demo`). Raises `LocalError`."""
    printed = await _headrace("Getting the demo model", "model", "demo")
    return Path(printed.strip().splitlines()[-1])


async def _headrace_json(what: str, *words: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(await _headrace(what, *words))
    return loaded


async def _headrace(what: str, *words: str) -> str:
    """Run `headrace WORDS` as a subprocess, since this package must not import its code; return its output."""
    command = [sys.executable, "-m", "headrace_cli", *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode != 0:
        raise LocalError(
            f"{what} failed.", why="The command was: " + " ".join(command), detail=err.decode()[-2000:].strip()
        )
    return out.decode()
