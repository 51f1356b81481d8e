"""Token ids to text, piece by piece: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"
PROMPT_TAIL = 6  # tokens of the prompt that decide how the first piece is spelled (a leading space, half a character)
LONGEST_WAIT = 8  # no character has more tokens than it has bytes (4): beyond, the bytes are simply invalid


class Detokenizer:
    """Incremental decoding: `push` returns text that is final, `flush` the rest."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-PROMPT_TAIL:])
        self._context = 0  # ids before this no longer matter
        self._done = len(self._ids)  # ids before this were returned as text

    def push(self, ids: Sequence[int]) -> str:
        """Take in `ids`; return the text that they complete."""
        self._ids.extend(ids)
        text = self._fresh()
        if text.endswith(REPLACEMENT) and len(self._ids) - self._done <= LONGEST_WAIT:
            return ""
        return self._accept(text)

    def flush(self) -> str:
        """The text of ids that wait for the rest of a character."""
        return self._accept(self._fresh())

    def _fresh(self) -> str:
        before = self._decode(self._ids[self._context : self._done])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _accept(self, text: str) -> str:
        if text:
            self._context, self._done = self._done, len(self._ids)
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class StopFilter:
    """Passes text through up to the first stop string, holding back whatever may turn out to begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that can be shown. Sets `stopped` when a stop string is complete; it and what follows are dropped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0


class TextStream:
    """The text of one request. Without `incremental` and stop strings it decodes once, at the end."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, stops: Sequence[str], incremental: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._filter = StopFilter(stops)
        self._pending: list[int] = []
        self._decodes_now = incremental or bool(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self._filter.stopped

    def push(self, token: int) -> str:
        """Take in one token; return text that can be shown now."""
        if self._decodes_now:
            return self._filter.push(self._detokenizer.push((token,)))
        self._pending.append(token)
        return ""

    def finish(self) -> str:
        """The rest of the text."""
        if self.stopped:
            return ""
        text = self._detokenizer.push(self._pending) if self._pending else ""
        text = self._filter.push(text + self._detokenizer.flush())
        return text + self._filter.flush()
