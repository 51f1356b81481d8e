"""Traces: one JSON object a line, each a request with its time and its lengths or its very prompt.

`timestamp` or `at` (seconds; `--trace-unit ms` for milliseconds; or ISO 8601), `prompt_tokens` (or `input_length`),
`prompt` (text) or `messages` (chat), `output_tokens` (or `output_length`, `max_tokens`). Other fields are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.workload.plans import PlannedRequest, RequestKind

TIMES = ("timestamp", "at")
PROMPT_LENGTHS = ("prompt_tokens", "input_length")
OUTPUT_LENGTHS = ("output_tokens", "output_length", "max_tokens")
UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3}
WORDS_PER_TOKEN = 0.75  # a guess for the length of a given prompt, until the server counts


class TraceFileError(HeadraceError):
    """A trace cannot be played; the message names the file and the line."""


def parse_trace(
    lines: Iterable[str], *, name: str, unit: str = "s", scale: float = 1.0, limit: int | None = None
) -> list[PlannedRequest]:
    """The requests in `lines`; `name` is for errors. Raises `TraceFileError`."""
    found: list[PlannedRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if limit is not None and len(found) >= limit:
            break
        try:
            found.append(_request(_object(line), unit=UNITS[unit], scale=scale))
        except ValueError as error:
            raise TraceFileError(f"--trace {name}, line {number}: {error}") from error
    if not found:
        raise TraceFileError(f"--trace {name}: holds no request; it needs one JSON object a line")
    found.sort(key=lambda request: request.at)  # a merged trace may be out of order, and a plan must not be
    return [replace(request, at=request.at - found[0].at) for request in found]


def _object(line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, got {line.strip()[:60]}")
    return value


def _request(values: Mapping[str, Any], *, unit: float, scale: float) -> PlannedRequest:
    content = _content(values)
    name, length = _first(values, PROMPT_LENGTHS)
    if name is None and content is None:
        raise ValueError("has no prompt: give prompt_tokens, prompt or messages")
    wanted, output = _first(values, OUTPUT_LENGTHS)
    return PlannedRequest(
        at=_time(values, unit) * scale,
        prompt_tokens=_guess(content) if name is None else _tokens(name, length),
        output_tokens=_tokens(wanted or OUTPUT_LENGTHS[0], output),
        kind=RequestKind.SHORT,
        content=content,
    )


def _content(values: Mapping[str, Any]) -> str | tuple[Mapping[str, Any], ...] | None:
    prompt, messages = values.get("prompt"), values.get("messages")
    if prompt is not None and messages is not None:
        raise ValueError("has both prompt and messages: give one")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"prompt: must be text, got {prompt!r:.60}")
        return prompt
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ValueError("messages: must be a list of objects with role and content")
    return tuple(messages)


def _time(values: Mapping[str, Any], unit: float) -> float:
    """The request's time in seconds, from the trace's own origin."""
    name, value = _first(values, TIMES)
    if name is None:
        raise ValueError(f"has no time: give {' or '.join(TIMES)}")
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
        seconds = math.nan if isinstance(value, bool) else float(value) * unit
    except (ValueError, TypeError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{name}: must be a number or an ISO 8601 time, got {value!r:.60}")
    return seconds


def _tokens(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: must be a whole number of at least 1, got {value!r}")
    return value


def _first(values: Mapping[str, Any], names: Iterable[str]) -> tuple[str | None, Any]:
    return next(((name, values[name]) for name in names if values.get(name) is not None), (None, None))


def _guess(content: str | tuple[Mapping[str, Any], ...] | None) -> int:
    text = content if isinstance(content, str) else " ".join(str(item.get("content", "")) for item in content or ())
    return max(1, round(len(text.split()) / WORDS_PER_TOKEN))
