"""Reads `{"name": "f", "arguments": {...}}` as it is generated: the name first, then the arguments piece by piece.

Pure. Arguments are passed on as the model wrote them: only the outer object must be well-formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pydantic_core import from_json

ARGUMENT_KEYS = ("arguments", "parameters")
SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text outside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallName:
    """Call `index` (from 0) begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call `index`: a piece of JSON."""

    index: int
    text: str


ToolEvent = PlainText | CallName | CallArguments


class _Took(Enum):
    MORE = auto()  # took it, the value goes on
    LAST = auto()  # took it, and the value is complete
    NOT = auto()  # the value ended before it


class _Value:
    """One JSON value, read character by character; only quotes and brackets are interpreted."""

    def __init__(self) -> None:
        self.chars: list[str] = []
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def text(self) -> str:
        """The value's source text so far."""
        return "".join(self.chars)

    def push(self, char: str) -> _Took:
        """Take in one character."""
        if not self._quoted and self._depth == 0 and self.chars and char in ",}]" + SPACE:
            return _Took.NOT
        self.chars.append(char)
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        else:
            self._quoted = char == '"'
            self._depth += (char in "{[") - (char in "}]")
            if not self._quoted and char not in "}]":
                return _Took.MORE
        return _Took.MORE if self._quoted or self._depth else _Took.LAST


class _At(Enum):
    START = auto()  # before the object
    KEY = auto()  # before a key or the end
    KEY_STRING = auto()
    COLON = auto()
    VALUE = auto()
    AFTER = auto()  # after a value
    DONE = auto()
    BROKEN = auto()


NEXT = {
    _At.START: {"{": _At.KEY},
    _At.KEY: {'"': _At.KEY_STRING, "}": _At.DONE},
    _At.COLON: {":": _At.VALUE},
    _At.AFTER: {",": _At.KEY, "}": _At.DONE},
}


class CallScanner:
    """Reads one call. `push` takes text up to the object's end; `raw` is the text taken before the name was known."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name: str | None = None
        self.raw = ""
        self._at = _At.START
        self._key: object = None
        self._value: _Value | None = None  # the one being read
        self._announced = False
        self._arguments: str | None = None  # None until complete
        self._given = 0  # characters of the arguments already returned

    @property
    def done(self) -> bool:
        """Whether the object is complete."""
        return self._at is _At.DONE

    @property
    def broken(self) -> bool:
        """Whether the text is not a well-formed call."""
        return self._at is _At.BROKEN

    @property
    def announced(self) -> bool:
        """Whether the `CallName` event was returned."""
        return self._announced

    def push(self, text: str) -> tuple[list[ToolEvent], str]:
        """Events that `text` completes, and the rest of `text`: what follows the object, or what broke it."""
        used = next((at for at, char in enumerate(text) if not self._step(char)), len(text))
        if not self._announced:
            self.raw += text[:used]
        if self.done and self.name is None:
            self._at = _At.BROKEN
        if self.done and self._arguments is None:
            self._arguments = "{}"
        return self._events(), text[used:]

    def _events(self) -> list[ToolEvent]:
        if self.name is None:
            return []
        events: list[ToolEvent] = [] if self._announced else [CallName(self.index, self.name)]
        self._announced = True
        if piece := self._fresh_arguments():
            events.append(CallArguments(self.index, piece))
            self._given += len(piece)
        return events

    def _fresh_arguments(self) -> str:
        if self._arguments is not None:
            return self._arguments[self._given :]
        value = self._value if self._at is _At.VALUE and self._key in ARGUMENT_KEYS else None
        # An object can be passed on as it grows; a string must be complete to be decoded.
        return "".join(value.chars[self._given :]) if value is not None and value.chars[0] in "{[" else ""

    def _step(self, char: str) -> bool:
        """Take in one character; False if it is not part of the object."""
        if self._value is not None:
            return self._read(self._value, char)
        if char in SPACE and not (self.done or self.broken):
            return True
        if self._at is _At.VALUE and char not in ",:}]":
            self._value = _Value()
            return self._read(self._value, char)
        if self.done:
            return False
        self._at = NEXT.get(self._at, {}).get(char, _At.BROKEN)
        if self._at is _At.KEY_STRING:
            self._value = _Value()
            self._value.push(char)
        return not self.broken

    def _read(self, value: _Value, char: str) -> bool:
        took = value.push(char)
        if took is _Took.MORE:
            return True
        self._value = None
        if self._at is _At.KEY_STRING:
            self._key, self._at = _decoded(value.text), _At.COLON
        else:
            self._at = _At.AFTER
            self._keep(value.text)
        return took is _Took.LAST or self._step(char)

    def _keep(self, text: str) -> None:
        """Note the value of the current key."""
        if self._key == "name" and self.name is None:
            name = _decoded(text)
            self.name = name if isinstance(name, str) and name else None
        elif self._key in ARGUMENT_KEYS and self._arguments is None:
            # Some models write the arguments as a string that holds JSON.
            whole = _decoded(text) if text.startswith('"') else text
            self._arguments = "{}" if text == "null" else whole if isinstance(whole, str) else text


def _decoded(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:  # including half a surrogate pair in an escape
        return None
