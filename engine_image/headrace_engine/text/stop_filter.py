"""Text up to the first stop string; text is held back only while it may still become one."""

from __future__ import annotations

from collections.abc import Sequence


class _StopMatcher:
    """One stop string, and how many of its first characters end the text so far (Knuth-Morris-Pratt)."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # For each length: how long is the longest proper prefix of the string that ends its first `length` characters.
        self._fallback = [0, 0]
        for char in text[1:]:
            size = self._fallback[-1]
            while size and text[size] != char:
                size = self._fallback[size]
            self._fallback.append(size + (text[size] == char))

    def feed(self, char: str) -> bool:
        """Whether `char` completes the string."""
        size = self.matched
        while size and self.text[size] != char:
            size = self._fallback[size]
        size += self.text[size] == char
        is_complete = size == len(self.text)
        self.matched = self._fallback[size] if is_complete else size
        return is_complete


class StopFilter:
    """Passes text through up to the stop string that completes first; holds back only a possible beginning of one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = [_StopMatcher(stop) for stop in stops if stop]
        self._include = include
        self._held = ""
        self.stop: str | None = None  # the stop string that ended the text

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """The text that can be shown now. Sets `stop` once a stop string is complete; text after it is dropped.

        With `may_stop` false, stop strings that `text` completes are ignored. Of several that end at the same
        character, the longest wins.
        """
        if self.stop is not None:
            return ""
        if not self._stops:
            return text
        whole = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [stop.text for stop in self._stops if stop.feed(char)]
            if complete and may_stop:
                self.stop, self._held = max(complete, key=len), ""
                return whole[: end if self._include else end - len(self.stop)]
        keep = len(whole) - max(stop.matched for stop in self._stops)
        self._held = whole[keep:]
        return whole[:keep]

    def flush(self) -> str:
        """What was held back; call it once, at the end of the text."""
        held, self._held = self._held, ""
        return held
