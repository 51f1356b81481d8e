"""Facts that a server reports about itself: its version and, for a Headrace engine, its device and config."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

from headrace_client import prom_text
from headrace_core import metric_names as metrics
from headrace_core.knobs.table import spelled

TIMEOUT = aiohttp.ClientTimeout(total=5)
LONGEST = 300  # most characters that a plausible version has


async def server_facts(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """JSON-ready facts; empty if the server reports none. Never fails for that."""
    facts = facts_of(await _get(session, f"{url}/metrics") or "")
    version = await _get(session, f"{url}/version")
    if version is not None and len(version) <= LONGEST:
        facts["version"] = version
    return facts


def facts_of(exposition: str) -> dict[str, Any]:
    """The labels of Headrace's info metrics: `engine`, and `config` with the hot knobs in force as text."""
    facts: dict[str, Any] = {}
    for sample in prom_text.parse(exposition):
        if sample.name == metrics.ENGINE_INFO.series:
            facts["engine"] = sample.labels
        if sample.name == metrics.CONFIG_INFO.series and sample.value == 1:
            facts.setdefault("config", {})[sample.labels.get("knob", "")] = sample.labels.get("value", "")
    return facts


def differing(config: Mapping[str, str], wanted: Mapping[str, Any]) -> list[str]:
    """Knobs that a server has in force with another value than `wanted`, as text."""
    return [
        f"{name} is {config[name]}, not {spelled(value)}"
        for name, value in wanted.items()
        if name in config and config[name] != spelled(value)
    ]


async def _get(session: aiohttp.ClientSession, url: str) -> str | None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(url, timeout=TIMEOUT) as response:
            if response.status == HTTPStatus.OK:
                return (await response.text()).strip()
    return None
