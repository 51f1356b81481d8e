"""Tool calls in generated text: incremental parsers, pure. The same parser serves streams and whole answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from headrace_engine.openai.tool_json import (
    SPACE,
    CallArguments,
    CallName,
    CallScanner,
    PlainText,
    ToolEvent,
)

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
LLAMA_PREFIX = "<|python_tag|>"


class ToolFormat(StrEnum):
    """How a model writes tool calls."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    LLAMA3_JSON = "llama3_json"  # {"name": ..., "parameters": {...}}; {...}
    NONE = "none"


def format_of(template: str) -> ToolFormat:
    """The format that a chat template teaches."""
    # Some models put other markup between the same tags.
    if HERMES_OPEN in template and "<function=" not in template and "<arg_key>" not in template:
        return ToolFormat.HERMES
    if LLAMA_PREFIX in template or '"parameters": dictionary' in template:
        return ToolFormat.LLAMA3_JSON
    return ToolFormat.NONE


class ToolParser(Protocol):
    """Splits generated text, as it comes, into calls and the text around them."""

    def push(self, text: str) -> list[ToolEvent]:
        """Events that `text` completes."""

    def finish(self) -> list[ToolEvent]:
        """What was held back; call it once, at the end of the text."""


class _Saying:
    """Text outside the calls. White space is held back until it is known not to precede a call, where it is dropped."""

    def __init__(self) -> None:
        self._space = ""
        self._after_call = False

    def say(self, text: str) -> list[ToolEvent]:
        """`text`, or what may be shown of it."""
        text = self._space + text
        if self._after_call:
            text = text.lstrip(SPACE)
        shown = text.rstrip(SPACE)
        self._space = text[len(shown) :]
        self._after_call = self._after_call and not shown
        return [PlainText(shown)] if shown else []

    def call(self) -> None:
        """A call begins or ends here."""
        self._space, self._after_call = "", True

    def finish(self) -> list[ToolEvent]:
        """White space at the end belongs to the text."""
        held, self._space = self._space, ""
        return [PlainText(held)] if held else []


class HermesParser:
    """`<tool_call>{...}</tool_call>`, any number of times, with text around them. Malformed calls stay text."""

    def __init__(self) -> None:
        self._rest = ""  # not looked at yet
        self._saying = _Saying()
        self._scanner: CallScanner | None = None
        self._calls = 0
        self._closing = False  # after a call's object, before its closing tag
        self._skipping = False  # after a malformed call, before its closing tag

    def push(self, text: str) -> list[ToolEvent]:
        """Events that `text` completes."""
        self._rest += text
        events: list[ToolEvent] = []
        before = None
        while self._rest and before != (before := (self._rest, self._scanner, self._closing)):
            events += self._scan() if self._scanner else self._close() if self._closing else self._outside()
        return events

    def finish(self) -> list[ToolEvent]:
        """What was held back. A call that is cut off before its name counts as text."""
        if self._scanner is not None and not self._scanner.announced:
            return [*self._saying.say(HERMES_OPEN + self._scanner.raw + self._rest), *self._saying.finish()]
        if self._scanner is not None or self._closing:
            return []
        return [*self._saying.say(self._rest), *self._saying.finish()]

    def _outside(self) -> list[ToolEvent]:
        at = self._rest.find(HERMES_OPEN)
        if at >= 0:
            said = self._saying.say(self._rest[:at])
            self._scanner = CallScanner(self._calls)
            self._rest = self._rest[at + len(HERMES_OPEN) :]
            return said
        keep = _overlap(self._rest, HERMES_OPEN)
        said = self._saying.say(self._rest[: len(self._rest) - keep])
        self._rest = self._rest[len(self._rest) - keep :]
        return said

    def _scan(self) -> list[ToolEvent]:
        scanner = self._scanner
        assert scanner is not None  # noqa: S101  (the caller looked)
        events, self._rest = scanner.push(self._rest)
        if scanner.announced:
            self._saying.call()
        if scanner.broken and not scanner.announced:
            self._scanner = None
            return self._saying.say(HERMES_OPEN + scanner.raw)
        if scanner.done or scanner.broken:
            self._calls += 1
            self._scanner, self._closing, self._skipping = None, True, scanner.broken
        return events

    def _close(self) -> list[ToolEvent]:
        """Drop the closing tag, which a model may forget, and after a broken call all text before it."""
        if self._skipping:
            ends = [at for at in (self._rest.find(HERMES_CLOSE), self._rest.find(HERMES_OPEN)) if at >= 0]
            if not ends:
                return []
            self._rest = self._rest[min(ends) :]
        text = self._rest.lstrip(SPACE)
        if text.startswith(HERMES_CLOSE) or not HERMES_CLOSE.startswith(text):
            self._rest = text.removeprefix(HERMES_CLOSE)
            self._closing = False
        return []


class SequenceParser:
    """Calls from the start of the text, with only `separators` between them. From anything else on, all is text."""

    def __init__(self, *, separators: str, prefix: str = "") -> None:
        self._separators = separators + SPACE
        self._prefix = prefix
        self._rest = ""
        self._scanner: CallScanner | None = None
        self._calls = 0
        self._is_text = False

    def push(self, text: str) -> list[ToolEvent]:
        """Events that `text` completes."""
        if self._is_text:
            return [PlainText(text)] if text else []
        self._rest += text
        events: list[ToolEvent] = []
        while not self._is_text:
            if self._scanner is None and not self._begin():
                break
            events += self._scan()
            if self._scanner is not None:
                break
        if self._is_text and self._rest:
            events.append(PlainText(self._rest))
            self._rest = ""
        return events

    def finish(self) -> list[ToolEvent]:
        """What was held back."""
        held = self._rest if self._scanner is None else "" if self._scanner.announced else self._scanner.raw
        held = held if self._calls == 0 else held.strip(self._separators)
        return [PlainText(held)] if held else []

    def _begin(self) -> bool:
        """Start a call if one begins here; decide that it is text if none can."""
        text = self._rest.lstrip(SPACE)
        if self._calls == 0 and self._prefix:
            if self._prefix.startswith(text):  # true for an empty text
                return False
            text = text.removeprefix(self._prefix)
        text = text.lstrip(self._separators)
        if not text:
            return False
        if not text.startswith("{"):
            self._is_text = True
            self._rest = text if self._calls else self._rest
            return False
        self._rest, self._scanner = text, CallScanner(self._calls)
        return True

    def _scan(self) -> list[ToolEvent]:
        scanner = self._scanner
        assert scanner is not None  # noqa: S101  (just begun)
        events, self._rest = scanner.push(self._rest)
        if scanner.broken and not scanner.announced:
            self._rest, self._is_text = scanner.raw + self._rest, True
        if scanner.done or scanner.broken:
            self._calls += 1
            self._scanner = None
        return events


class NamedParser:
    """All text is the arguments of one call, as a grammar forces it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> list[ToolEvent]:
        """Events that `text` completes."""
        text = text if self._begun else text.lstrip(SPACE)
        if not text:
            return []
        began, self._begun = self._begun, True
        return [*([] if began else [CallName(0, self._name)]), CallArguments(0, text)]

    def finish(self) -> list[ToolEvent]:
        """The call stands even if no token of its arguments came."""
        return [] if self._begun else [CallName(0, self._name)]


def parser_for(kind: ToolFormat) -> ToolParser:
    """A parser for the calls that a model writes unforced, in its own format."""
    if kind is ToolFormat.LLAMA3_JSON:
        return SequenceParser(separators=";", prefix=LLAMA_PREFIX)
    return HermesParser()


def mark_of(kind: ToolFormat) -> str:
    """The text that announces a call. If it is a special token, decoding must keep it for the parser."""
    return LLAMA_PREFIX if kind is ToolFormat.LLAMA3_JSON else HERMES_OPEN


def forced_parser(name: str | None) -> ToolParser:
    """A parser for text under `tool_grammar.forced_schema`: the arguments of `name`, or a list of calls."""
    return NamedParser(name) if name is not None else SequenceParser(separators="[],")


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-size:])), 0)
