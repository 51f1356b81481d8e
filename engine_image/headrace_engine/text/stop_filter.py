"""Text up to the first stop string, held back only where it may turn out to begin one."""

from __future__ import annotations

from collections.abc import Sequence


class _StopMatcher:
    """One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt)."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # For each length: the longest start of the string that also ends its first `length` characters, and is shorter.
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
    """Passes text through up to the stop string that is complete first, holding back only what may begin one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = [_StopMatcher(stop) for stop in stops if stop]
        self._include = include
        self._held = ""
        self.stop: str | None = None  # the string that was met

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Text that can be shown. Sets `stop` when a stop string is complete; what follows is dropped.

        With `may_stop` false a string that `text` completes does not count. Of strings that are complete at the same
        character the longest counts.
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
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held
