"""The constraint that a body puts on its output: what to compile to a grammar, and the field that asks for it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from headrace_engine.http.errors import ApiError, invalid
from headrace_engine.openai.messages import NamedChoice
from headrace_engine.openai.schema import ChatBody, GenerationBody
from headrace_engine.openai.tool_grammar import forced_schema


@dataclass(frozen=True, slots=True)
class Constraint:
    """`kind` is json_schema, json_object, regex or choice; `value` its definition; `param` the field that gave it."""

    kind: str
    value: Any
    param: str


def constraint_of(body: GenerationBody) -> Constraint | None:
    """The one constraint of a body, or None. Raises `ApiError` 400 for several, or an empty one."""
    found = [item for item in (*_formats(body), *_structured(body), *_guided(body), *_forced(body)) if item is not None]
    if len(found) > 1:
        names = ", ".join(item.param for item in found)
        raise invalid(
            f"{names} each constrain the text: give only one", param=found[1].param, code="conflicting_parameters"
        )
    if found and found[0].param == "response_format" and isinstance(body, ChatBody) and body.choice_of_tools == "auto":
        raise invalid(
            "response_format forces JSON from the first character on, so no tool could be called: leave one out, "
            "or set tool_choice", param="response_format", code="conflicting_parameters",
        )  # fmt: skip
    return found[0] if found else None


def _formats(body: GenerationBody) -> list[Constraint | None]:
    wanted, param = body.response_format, "response_format"
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [Constraint("json_object", None, param)]
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise invalid(
            "response_format.json_schema.schema is missing: type json_schema needs it",
            param=param, code="missing_required_parameter",
        )  # fmt: skip
    return [Constraint("json_schema", wanted.json_schema.schema_, param)]


def _structured(body: GenerationBody) -> list[Constraint | None]:
    wanted, param = body.structured_outputs, "structured_outputs"
    if wanted is None:
        return []
    found = [
        None if wanted.json_ is None else Constraint("json_schema", _schema(wanted.json_, f"{param}.json"), param),
        None if wanted.regex is None else Constraint("regex", wanted.regex, param),
        None if wanted.choice is None else Constraint("choice", tuple(wanted.choice), param),
        Constraint("json_object", None, param) if wanted.json_object else None,
    ]
    if not any(found):
        raise invalid(
            "structured_outputs is empty: give json, regex, choice or json_object",
            param=param, code="missing_required_parameter",
        )  # fmt: skip
    return list(found)


def _guided(body: GenerationBody) -> list[Constraint | None]:
    schema, regex, choice = body.guided_json, body.guided_regex, body.guided_choice
    return [
        None if schema is None else Constraint("json_schema", _schema(schema, "guided_json"), "guided_json"),
        None if regex is None else Constraint("regex", regex, "guided_regex"),
        None if choice is None else Constraint("choice", tuple(choice), "guided_choice"),
    ]


def _forced(body: GenerationBody) -> list[Constraint | None]:
    if not isinstance(body, ChatBody) or body.choice_of_tools in ("none", "auto"):
        return []
    choice = body.choice_of_tools
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    schema = forced_schema(body.tools or [], name=name, parallel=body.parallel_tool_calls is not False)
    return [Constraint("json_schema", schema, "tools")]


def _schema(value: Mapping[str, Any] | str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, str):
        return value
    try:
        schema = from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise _no_schema(where, f"it is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise _no_schema(where, f"it is {json.dumps(schema)[:60]}")
    return schema


def _no_schema(where: str, why: str) -> ApiError:
    return invalid(
        f"{where} must be a JSON schema, an object: {why}", param=where.partition(".")[0], code="invalid_value"
    )
