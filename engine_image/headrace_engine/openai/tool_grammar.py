"""The JSON schema that forces a tool call. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_engine.openai.messages import Tool


def forced_schema(tools: Sequence[Tool], *, name: str | None, parallel: bool) -> dict[str, Any]:
    """The schema of the arguments of `name`; without a name, of a list of calls, just one unless `parallel`."""
    if name is not None:
        return next(tool.function.schema_of_arguments for tool in tools if tool.function.name == name)
    definitions = {
        f"arguments{at}": _moved(tool.function.schema_of_arguments, f"#/$defs/arguments{at}")
        for at, tool in enumerate(tools)
    }
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": {"$ref": f"#/$defs/arguments{at}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for at, tool in enumerate(tools)
    ]
    listed: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
    }
    return listed | ({} if parallel else {"maxItems": 1}) | {"$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """`schema` with its references to itself rewritten for its new place at `root`."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # References would resolve against an "$id". A property may have that name too, but its value is not a string.
    named = {key for key in ("$id", "$schema") if isinstance(schema.get(key), str)}
    moved = {key: _moved(value, root) for key, value in schema.items() if key not in named}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
