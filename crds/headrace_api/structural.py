"""Turns a pydantic model's JSON schema into a Kubernetes structural schema (the OpenAPI v3 dialect of CRDs). Pure.

Whatever pydantic writes that Kubernetes refuses or misreads is translated: references are inlined, null branches go,
`const` becomes an enum, exclusive bounds take their boolean form, titles and computed defaults are left out. A
keyword without a translation is an error that names the place, so a model cannot drift into an invalid CRD unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

FROZEN_DEFAULT = "x-headrace-frozen-default"
INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"

_COPIED = (
    "description", "type", "format", "pattern", "enum", "minimum", "maximum", "multipleOf", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "required",
)  # fmt: skip
_DROPPED = {"title", "$defs", "const", "default", "examples", FROZEN_DEFAULT, "anyOf", "additionalProperties"}
_TRANSLATED = {"properties", "items", "exclusiveMinimum", "exclusiveMaximum"}

Schema = dict[str, Any]


class NotStructural(ValueError):  # noqa: N818
    """A schema has no structural form; the message names the place."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """Structural schema of a model. Raises `NotStructural`."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, definitions=schema.get("$defs", {}), path=model.__name__)


def root_schema(model: type[BaseModel]) -> Schema:
    """Structural schema of a whole custom resource: the API server itself owns apiVersion, kind and metadata."""
    schema = structural_schema(model)
    properties = schema["properties"]
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    schema["required"] = ["spec"]
    return schema


def _convert(schema: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str) -> Schema:
    schema = _resolved(schema, definitions, path=path)
    if schema.get(INT_OR_STRING) or _is_mixed(schema):
        return _open_scalar(schema)
    unknown = {key for key in schema if not key.startswith("x-kubernetes-")} - {*_COPIED, *_DROPPED, *_TRANSLATED}
    if unknown:
        raise NotStructural(f"{path}: no structural form for {', '.join(sorted(unknown))}")
    result: Schema = {key: schema[key] for key in _COPIED if key in schema}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    _constants_and_bounds(schema, result)
    if "properties" in schema:
        result["properties"] = {
            name: _convert(child, definitions=definitions, path=f"{path}.{name}")
            for name, child in schema["properties"].items()
        }
    if "items" in schema:
        result["items"] = _convert(schema["items"], definitions=definitions, path=f"{path}[]")
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        result["additionalProperties"] = _convert(values, definitions=definitions, path=f"{path}{{}}")
    result |= {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}
    if "type" not in result:
        raise NotStructural(f"{path}: no type")
    return result


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str) -> Schema:
    """`schema` with its reference inlined and no null branch; keys beside a reference win over those of its target."""
    beside = dict(schema)
    if reference := beside.pop("$ref", None):
        target = definitions[reference.rsplit("/", 1)[-1]]
        return _resolved({**target, **beside}, definitions, path=path)
    branches = [item for item in beside.get("anyOf", ()) if item.get("type") != "null"]
    if len(branches) == 1:
        del beside["anyOf"]
        return _resolved({**branches[0], **beside}, definitions, path=path)
    if branches:
        beside["anyOf"] = branches
    return beside


def _is_mixed(schema: Mapping[str, Any]) -> bool:
    branches = schema.get("anyOf", ())
    return bool(branches) and all(item.get("type") in {"boolean", "integer", "number", "string"} for item in branches)


def _open_scalar(schema: Mapping[str, Any]) -> Schema:
    """A value of several types: int-or-string if it is marked so, else untyped."""
    described: Schema = {"description": schema["description"]} if "description" in schema else {}
    kubernetes = {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}
    return described | ({} if schema.get(INT_OR_STRING) else {PRESERVE: True}) | kubernetes


def _constants_and_bounds(schema: Mapping[str, Any], result: Schema) -> None:
    if "const" in schema:
        result["enum"] = [schema["const"]]
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            result[inclusive], result[exclusive] = schema[exclusive], True
    if schema.get(FROZEN_DEFAULT):
        result["default"] = schema["default"]
