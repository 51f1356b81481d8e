"""Grammars as requested, their translation for llguidance, and readable error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from llguidance import LLMatcher

from headrace_engine.errors import EngineError

MAX_BYTES = 65_536  # of one grammar's definition
# Blanks allowed between JSON tokens. Without a limit, a weak model may write blanks until max_tokens.
JSON_BLANKS = r"[\x20\x0A\x0D\x09]{1,20}"
# Without this, it spells out long texts without alternatives at every step: tenths of a second for 64 kB.
HEAD = '%llguidance {"no_forcing": true}\n'
DEAD_END = "no token of this model's vocabulary continues it"


class GrammarError(EngineError):
    """The grammar cannot be used, or the output cannot continue in it; the message says why."""


class GrammarKind(StrEnum):
    """What the output must be."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar as requested.

    `value`: the schema (a dict, a bool, or JSON text), nothing for json_object, a regular expression that must match
    the whole output, or the strings to choose from.
    """

    kind: GrammarKind
    value: Any = None


def definition_of(spec: GrammarSpec) -> str:
    """The grammar in llguidance's form. Raises `GrammarError`."""
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            return HEAD + _json('{"type":"object"}')
        case GrammarKind.JSON_SCHEMA:
            return HEAD + _json(_schema_text(spec.value))
        case GrammarKind.REGEX:
            return HEAD + _regex(spec.value)
        case GrammarKind.CHOICE:
            return HEAD + _choice(spec.value)


def _json(schema: str) -> str:
    # These override options that the schema sets with x-guidance.
    options: Any = {"lenient": False, "whitespace_pattern": JSON_BLANKS}
    try:
        made = json.loads(LLMatcher.grammar_from_json_schema(schema, overrides=options))
    except ValueError as error:
        raise GrammarError(f"json_schema: {one_line(str(error))}") from error
    return f"start: %json {json.dumps(made['grammars'][0]['json_schema'])}"


def _regex(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise GrammarError("regex: must be a non-empty string")
    _check_size(GrammarKind.REGEX, value)
    return str(json.loads(LLMatcher.grammar_from_regex(value))["grammars"][0]["lark_grammar"])


def _schema_text(value: object) -> str:
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise GrammarError(
                "json_schema: nothing satisfies the schema false" if schema is False
                else f"json_schema: a schema is a JSON object, not {type(schema).__name__}"
            )  # fmt: skip
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"json_schema: not JSON: {one_line(str(error))}") from error
    _check_size(GrammarKind.JSON_SCHEMA, text)
    return text


def _choice(value: object) -> str:
    strings = list(value) if isinstance(value, (list, tuple)) else []
    if not strings or not all(isinstance(item, str) and item for item in strings):
        raise GrammarError("choice: must be a list of at least one non-empty string")
    spelled = " | ".join(json.dumps(item, ensure_ascii=False) for item in strings)
    _check_size(GrammarKind.CHOICE, spelled)
    return f"start: {spelled}"


def _check_size(kind: GrammarKind, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(f"{kind}: contains half a character (a lone surrogate): send valid Unicode") from error
    if size > MAX_BYTES:
        raise GrammarError(f"{kind}: {size} bytes, at most {MAX_BYTES} are allowed")


def reason_of(core: LLMatcher) -> str:
    """llguidance's error in one line."""
    text = core.get_error().removesuffix("<non-verbose/>").strip()
    if not text or text.startswith("NoExtension"):
        return DEAD_END
    # A parser's report shows the whole text, with the actual error on a line of its own.
    point = re.search(r"^error: (.+)$", text, flags=re.MULTILINE)
    if point:
        return one_line(point[1])
    text = re.split(r"\n\s+\d+ \| ", text)[0]  # our translation of the grammar, unknown to the client
    return one_line(re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", text))


def explained(reason: str, spec: GrammarSpec) -> str:
    """A clearer message for some of llguidance's errors, with the place of an unsupported keyword."""
    if reason.startswith("Unimplemented keys: "):
        keys = re.findall(r'"([^"]+)"', reason)
        where = _place_of(spec.value, keys)
        return f"the keyword{'s' * (len(keys) > 1)} {', '.join(keys)} cannot be enforced ({where}): leave it out"
    if "coerce_one_of" in reason:
        return (
            "oneOf is only supported where at most one alternative can hold, as with a constant that tells them apart: "
            'use anyOf, or set "x-guidance": {"coerce_one_of": true} in the schema to have it read as anyOf'
        )
    return reason


def _place_of(schema: object, keys: Sequence[str]) -> str:
    """JSON pointer of the first object of the schema that has all of `keys`."""
    schema = json.loads(schema) if isinstance(schema, str) else schema
    todo: list[tuple[str, object]] = [("#", schema)]
    while todo:
        where, item = todo.pop(0)
        if isinstance(item, dict):
            if all(key in item for key in keys):
                return f"at {where}"
            todo.extend((f"{where}/{key}", value) for key, value in item.items())
        elif isinstance(item, list):
            todo.extend((f"{where}/{at}", value) for at, value in enumerate(item))
    return "somewhere in the schema"


def one_line(text: str) -> str:
    """A message without line breaks, at most 300 characters long."""
    return " ".join(text.split())[:300]
