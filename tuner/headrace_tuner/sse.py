"""Server-sent events and the chunks of a streamed completion. Pure: bytes and times in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

DONE = "[DONE]"


class StreamError(ValueError):
    """The stream is not what an OpenAI server sends, or carries the server's own error."""


@dataclass(slots=True)
class SseDecoder:
    """Cuts a byte stream into the payloads of its `data:` lines, wherever the network cut it."""

    _rest: bytes = b""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> Iterator[str]:
        """Payloads that `data` completes."""
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
    """What one streamed completion showed so far; times are of the caller's clock, in seconds.

    A chunk is not a token: the number of tokens comes from `usage` where the server sends it. A chunk without text (a
    role, the usage) is no first token.
    """

    times: list[float] = field(default_factory=list)
    tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False

    def feed(self, payload: str, now: float) -> None:
        """Take one payload that came at `now`. Raises `StreamError`."""
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
        usage = chunk.get("usage") or {}
        self.tokens = usage.get("completion_tokens", self.tokens)
        for choice in chunk.get("choices") or []:
            self._choice(choice, now)

    def _choice(self, choice: dict[str, object], now: float) -> None:
        if choice.get("text"):
            self.times.append(now)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            if not self.times:  # tokens that decode to no text at all
                self.times.append(now)

    @property
    def output_tokens(self) -> int:
        """Tokens generated: as the server counted, else one for each chunk with text."""
        return len(self.times) if self.tokens is None else self.tokens
