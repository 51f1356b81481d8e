"""From token ids to text, piece by piece: never half a character, never part of a stop string."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from headrace_engine.text.stop_filter import StopFilter

REPLACEMENT = "\ufffd"
PROMPT_TAIL = 6  # tokens of the prompt that decide how the first piece is spelled (a leading space, half a character)
LONGEST_CHARACTER = 4  # bytes, and so tokens
LONGEST_WAIT = 8  # tokens without text; after more, the bytes must be invalid
WINDOW = 32  # tokens decoded at once: a token's text depends only on the few tokens before it


class Detokenizer:
    """Incremental decoding: `push` returns text that is final, `flush` the rest. Linear in the number of tokens."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._hidden = special_ids(tokenizer) if skip_special else frozenset[int]()
        self._ids = self._tail(prompt)  # the window: earlier tokens do not affect new text
        self._shown = len(self._decode(self._ids))  # characters of the window's text that were returned
        self._clean = 0  # an earlier end of the window where a character ended too: a safe place to cut
        self._waiting = 0  # tokens since text was returned

    def push(self, ids: Sequence[int]) -> str:
        """Take in `ids`; return the text that they complete, which may be empty."""
        if not self._extend(ids):
            return ""
        text = self._decode(self._ids)
        fresh = text[self._shown :]
        ends_clean = not fresh.endswith(REPLACEMENT)
        if not ends_clean:
            if self._waiting <= LONGEST_WAIT:
                return ""
            fresh = fresh[:-1]  # later tokens may still complete the last character
        self._waiting = 0 if fresh else self._waiting
        self._shown += len(fresh)
        self._slide(ends_clean=ends_clean, unshown=len(text) - self._shown)
        return fresh

    def flush(self, ids: Sequence[int] = ()) -> str:
        """Take in the last `ids`; return all text that is left. An unfinished character becomes one U+FFFD."""
        self._extend(ids)
        text = self._decode(self._ids)
        if not text.endswith(REPLACEMENT):
            fresh = text[self._shown :]
        else:
            # If each byte is a token, an unfinished character spoils its finished neighbours: decode without it.
            cuts = (self._decode(self._ids[:-count]) for count in range(1, LONGEST_CHARACTER) if count < len(self._ids))
            clean = next((cut for cut in cuts if not cut.endswith(REPLACEMENT)), "")
            whole = max(text.rstrip(REPLACEMENT), clean, key=len)
            fresh = whole[self._shown :] + (REPLACEMENT if len(text) > self._shown else "")
        self._shown, self._waiting = len(text), 0
        return fresh

    def _extend(self, ids: Sequence[int]) -> int:
        before = len(self._ids)
        self._ids.extend(token for token in ids if token not in self._hidden)
        added = len(self._ids) - before
        self._waiting += added
        return added

    def _slide(self, *, ends_clean: bool, unshown: int) -> None:
        """Drop tokens that no longer matter, cutting between two characters if possible."""
        end = len(self._ids)
        cut = self._clean if ends_clean else 0
        if end > 4 * WINDOW and not cut:
            cut = end - PROMPT_TAIL
        if end > WINDOW and cut:
            del self._ids[:cut]
            self._shown = len(self._decode(self._ids)) - unshown
            end, self._clean = len(self._ids), 0
        if ends_clean:
            self._clean = end

    def _tail(self, prompt: Sequence[int]) -> list[int]:
        """The end of the prompt, starting between two characters if there is such a place nearby."""
        visible = [token for token in prompt[-4 * PROMPT_TAIL :] if token not in self._hidden]
        for size in range(PROMPT_TAIL, PROMPT_TAIL + LONGEST_CHARACTER):
            if not self._decode(visible[-size:]).startswith(REPLACEMENT):
                return visible[-size:]
        return visible[-PROMPT_TAIL:]

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
        )
        return text


@functools.lru_cache(maxsize=8)
def special_ids(tokenizer: Any) -> frozenset[int]:
    """The tokenizer's special tokens, which add nothing to the text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(token for token, about in added.items() if about.special)


class TextStream:
    """The text of one request. Without stop strings, and unless `incremental`, it is decoded once, at the end.

    `stops` take effect from token `min_tokens + 1` on; with `include_stop` they stay in the text.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int], *, stops: Sequence[str], incremental: bool,
        include_stop: bool = False, min_tokens: int = 0, skip_special: bool = True,
    ) -> None:  # fmt: skip
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special=skip_special)
        self._filter = StopFilter(stops, include=include_stop)
        self._pending: list[int] = []
        self._decodes_now = incremental or bool(stops)
        self._early = min_tokens  # how many of the next tokens cannot complete a stop string
        self.include_stop = include_stop

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._filter.stop

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._filter.stop is not None

    def push(self, token: int) -> str:
        """Take in one token; return text that can be shown now."""
        if not self._decodes_now:
            self._pending.append(token)
            return ""
        text = self._filter.push(self._detokenizer.push((token,)), may_stop=self._early <= 0)
        self._early -= 1
        return text

    def finish(self) -> str:
        """The rest of the text. Half a character at its end becomes one U+FFFD."""
        if self.stopped:
            return ""
        text = self._detokenizer.flush(self._pending)
        self._pending = []
        return self._filter.push(text, may_stop=self._early <= 0) + self._filter.flush()
