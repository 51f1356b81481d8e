"""Server-sent events and the chunks of a streamed completion or chat. Pure: bytes and times in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"
# Where a chat's delta may carry generated text; reasoning counts as output, since the user's wait ends with it.
DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class StreamError(ValueError):
    """The stream is not what an OpenAI server sends, or carries the server's own error."""


@dataclass(slots=True)
class SseDecoder:
    """Cuts a byte stream into the payloads of its `data:` lines, wherever the network split it."""

    _rest: bytes = b""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> Iterator[str]:
        """The payloads that are complete once `data` has arrived."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            payload = self._line(line.rstrip(b"\r").decode("utf-8", errors="replace"))
            if payload is not None:
                yield payload

    def _line(self, line: str) -> str | None:
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
            return None
        if line or not self._data:  # a comment, another field, or an empty event
            return None
        payload, self._data = "\n".join(self._data), []
        return payload


@dataclass(slots=True)
class Completion:
    """What one streamed completion has brought so far; times are on the caller's clock, in seconds.

    A chunk is not a token: the number of tokens comes from `usage` if the server sends it. A chunk without text (a
    role, the usage) does not count as the first token. `pieces` are kept only with `keep_text`.
    """

    times: list[float] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    keep_text: bool = False
    pieces: list[str] = field(default_factory=list)

    def feed(self, payload: str, now: float) -> None:
        """Take in one payload that came at `now`. Raises `StreamError`."""
        if payload == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise StreamError(f"a data line is not JSON: {payload[:100]!r}") from error
        if not isinstance(chunk, dict):
            raise StreamError(f"a data line is not an object: {payload[:100]!r}")
        if chunk.get("error"):
            raise StreamError(f"the server reports: {json.dumps(chunk['error'])[:300]}")
        if isinstance(chunk.get("usage"), dict):
            self._usage(chunk["usage"])
        for choice in chunk.get("choices") or []:
            if not isinstance(choice, dict):
                raise StreamError(f"a choice is not an object: {payload[:100]!r}")
            self._choice(choice, now)

    def _usage(self, usage: Mapping[str, Any]) -> None:
        self.tokens = _count(usage.get("completion_tokens"), self.tokens)
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)

    def _choice(self, choice: Mapping[str, Any], now: float) -> None:
        text = _text(choice)
        if text:
            self.times.append(now)
            if self.keep_text:
                self.pieces.append(text)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            if not self.times:  # tokens that decode to no text at all
                self.times.append(now)

    @property
    def output_tokens(self) -> int:
        """Number of tokens generated, as the server counted them; else one for each chunk with text."""
        return len(self.times) if self.tokens is None else self.tokens


def _text(choice: Mapping[str, Any]) -> str:
    """The generated text of one choice of a chunk, of either API; a tool call's arguments are output too."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    texts = [str(delta[name]) for name in DELTA_TEXTS if delta.get(name)]
    return "".join(texts) + (json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else "")


def _count(value: object, known: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else known
