"""Shared by all request bodies: strict models, checked field types, strict JSON, errors that name the field."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from headrace_engine.http.errors import ApiError, invalid

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 128
MAX_BIASES = 1024
MAX_LOGPROBS = 20
MAX_CHOICES = 128  # prompts times n
MAX_TOOLS = 128
SHOWN_CHARS = 60

# For fields that accept several types: pydantic's message would be about only one of them.
UNION_MESSAGES = {
    "stop": "must be a string or a list of strings",
    "content": "must be a string or a list of parts of type text",
    "tool_choice": 'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
    "guided_json": "must be a JSON schema: an object, or a string that holds one",
    "json": "must be a JSON schema: an object, or a string that holds one",
}
CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
}

_HEX = rb"[0-9a-fA-F]"
_HIGH = rb"\\u[dD][89abAB]" + _HEX * 2
_LOW = rb"\\u[dD][c-fC-F]" + _HEX * 2
_LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))


class Strict(BaseModel):
    """A body or a part of one: no unknown fields, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _all_finite(value: dict[str, Any]) -> dict[str, Any]:
    left: list[Any] = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise PydanticCustomError("finite_number", "holds a number that is too large for JSON")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_all_finite)]
StopString = Annotated[str, Field(max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
TokenIds = Annotated[list[int], Field(max_length=MAX_STOP_IDS)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)]
# Fields with their own defaults: null is the same as leaving them out, and is dropped before the models see it.
Flag = Annotated[bool, WithJsonSchema({"type": ["boolean", "null"]})]
Count = Annotated[int, Field(ge=0, lt=2**31), WithJsonSchema({"type": ["integer", "null"], "minimum": 0})]
Priority = Annotated[
    int, Field(ge=-(2**31), lt=2**31),
    WithJsonSchema({"type": ["integer", "null"], "minimum": -(2**31), "exclusiveMaximum": 2**31}),
]  # fmt: skip
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises `ApiError` 400: not JSON, NaN, a lone surrogate, more than 200 levels.

    The parser is fast (0.1 ms for a megabyte of text) but holds the GIL while it runs.
    """
    try:
        values = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}{_advice(raw)}", code="invalid_json") from error
    if not isinstance(values, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    return values


def _advice(raw: bytes) -> str:
    """A hint at what is most likely wrong with a body that is not JSON; may be empty."""
    if _LONE_SURROGATE.search(raw) or not _is_utf8(raw):
        return " (is it a lone surrogate, half a character? Send valid Unicode)"
    return " (NaN and Infinity are not JSON numbers)" if b"NaN" in raw or b"Infinity" in raw else ""


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def raise_first(error: ValidationError, values: object) -> NoReturn:
    """Raise `ApiError` 400 for the most specific problem of `error`, with the path of its field in `values`."""
    details = error.errors(include_url=False, include_context=False)
    paths = [_path(item, values) for item in details]
    # Of a union's alternatives, the one that got deepest is likely the one meant; a wrong type says the least.
    deepest = max(range(len(details)), key=lambda at: (len(paths[at]), not details[at]["type"].endswith("_type"), -at))
    raise problem(details[deepest], paths[deepest]) from error


def problem(item: ErrorDetails, path: Sequence[str | int]) -> ApiError:
    """One of pydantic's errors as a 400 with OpenAI's code."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    name = str(path[0]) if path else None
    kind = item["type"]
    code = CODES.get(kind) or ("invalid_type" if kind.endswith("_type") else "invalid_value")
    if kind == "extra_forbidden":
        return invalid(f"{where} is not a parameter of this server: leave it out", param=name, code=code)
    message = item["msg"][:1].lower() + item["msg"][1:]
    if kind.endswith(("_type", "literal_error")) and path and path[-1] in UNION_MESSAGES:
        message = UNION_MESSAGES[str(path[-1])]
    return invalid(f"{where or 'the body'}: {message}{_shown(item['input'], kind)}", param=name, code=code)


def _path(item: ErrorDetails, values: object) -> list[str | int]:
    # A union adds a segment for the alternative that it tried: keep only segments that exist in the body.
    path: list[str | int] = []
    for at, part in enumerate(item["loc"]):
        places = range(len(values)) if isinstance(values, list) else values if isinstance(values, dict) else ()
        if part in places:
            values = values[part]  # type: ignore[index]
        elif not (item["type"] == "missing" and at == len(item["loc"]) - 1):
            continue
        path.append(part)
    return path


def _shown(value: object, kind: str) -> str:
    if kind == "missing" or not isinstance(value, str | int | float) or kind.startswith(("string_too", "finite")):
        return ""
    text = str(value)
    return f", not {text[:SHOWN_CHARS] + '...' if len(text) > SHOWN_CHARS else text}" if text else ""
