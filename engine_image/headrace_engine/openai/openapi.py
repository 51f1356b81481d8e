"""`/openapi.json`: the serving port's API, generated from the models that parse request bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace_engine.openai.routes import OPERATIONS, Operation
from headrace_engine.version import VERSION

REF = "#/components/schemas/"
Json = dict[str, Any]
GENERATING = frozenset({"/v1/completions", "/v1/chat/completions"})
# Routes besides OpenAI's: path, content type, schema, whether 503 means that the server is not well, description.
OWN = (
    ("/health", "application/json", "Health", True, "Whether calls should come here: vLLM's name for /health/ready."),
    ("/health/live", "application/json", "Health", True, "Whether the process is alive; 503: restart it."),
    ("/health/ready", "application/json", "Health", True, "Whether calls should come here."),
    ("/health/startup", "application/json", "Health", True, "Whether the model is loaded."),
    ("/ping", "application/json", "Health", True, "The same as /health, for platforms that ask for this name."),
    ("/metrics", "text/plain", None, False, "Metrics in Prometheus's text format."),
    ("/version", "application/json", "Version", False, "Versions of the server and its libraries."),
    ("/openapi.json", "application/json", None, False, "This document."),
)
ERRORS: Mapping[int, str] = {
    400: "The request is wrong; `error.param` names the field.",
    401: "No API key, or one that is not valid.",
    404: "The model is not served here.",
    408: "The body stopped coming.",
    413: "The body is too large.",
    429: "The queue is full; try again after `Retry-After` seconds.",
    500: "The request failed in the engine.",
    503: "The model is loading, or the server is shutting down; try again after `Retry-After` seconds.",
}
WITH_RETRY_AFTER = frozenset({429, 503})


def openapi_route(*, guarded: bool) -> Route:
    """The route that publishes the document. `guarded`: calls need an API key."""

    async def openapi(_: Request) -> Response:
        return JSONResponse(document(guarded=guarded))

    return Route("/openapi.json", openapi)


@functools.cache
def document(*, guarded: bool) -> Json:
    """The OpenAPI 3.1 document, made once."""
    bodies = [(each.body, "validation") for each in OPERATIONS if each.body is not None]
    _, made = models_json_schema(bodies, ref_template=REF + "{model}")  # type: ignore[arg-type]
    schemas = made.get("$defs", {}) | ANSWERS
    for each in OPERATIONS:
        if each.body is not None:
            _accept_null(schemas[each.body.__name__])
    paths: Json = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, guarded=guarded)
    for path, media, schema, may_fail, about in OWN:
        paths[path] = {"get": _own_operation(media, schema, about, may_fail=may_fail)}
    components: Json = {"schemas": schemas}
    if guarded:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace engine", "version": VERSION,
            "description": "OpenAI's API over one model, with vLLM's routes for tokens. Errors have OpenAI's form.",
        },
        "paths": paths,
        "components": components,
    }  # fmt: skip


def _accept_null(schema: Json) -> None:
    """Let `schema` accept null for each optional field: clients may send it instead of leaving the field out."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        if name not in required and "type" in field and field["type"] != "null":
            schema["properties"][name] = {
                "anyOf": [{"type": "null"}, {key: value for key, value in field.items() if key not in ABOUT}],
                **{key: value for key, value in field.items() if key in ABOUT},
            }


ABOUT = frozenset({"title", "description", "default"})


def _operation(operation: Operation, *, guarded: bool) -> Json:
    codes = [400, 503]
    if operation.body is not None:
        codes += [404, 408, 413, 500]
    if "{" in operation.path:
        codes += [404]
    if operation.path in GENERATING:
        codes += [429]
    if guarded:
        codes += [401]
    described: Json = {
        "summary": operation.about,
        "responses": {"200": _success(operation), **{str(code): _error(code) for code in sorted(set(codes))}},
        "security": [{"key": []}] if guarded else [],
    }
    if operation.body is not None:
        body = {"application/json": {"schema": {"$ref": REF + operation.body.__name__}}}
        described["requestBody"] = {"required": True, "content": body}
    if "{name}" in operation.path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        described["parameters"] = [name]
    return described


def _success(operation: Operation) -> Json:
    content: Json = {"application/json": {"schema": {"$ref": REF + operation.result}}}
    if operation.path in GENERATING:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": operation.about, "content": content, "headers": HEADERS}


def _error(code: int) -> Json:
    answer: Json = {
        "description": ERRORS[code], "content": {"application/json": {"schema": {"$ref": REF + "Error"}}}
    }  # fmt: skip
    if code in WITH_RETRY_AFTER:
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return answer


def _own_operation(media: str, schema: str | None, about: str, *, may_fail: bool) -> Json:
    described = {"type": "string" if media == "text/plain" else "object"} if schema is None else {"$ref": REF + schema}
    answers = {"200": {"description": about, "content": {media: {"schema": described}}, "headers": HEADERS}}
    if may_fail:
        answers["503"] = {"description": "It is not; `reason` says why.", "content": answers["200"]["content"]}
    return {"summary": about, "responses": answers, "security": []}


HEADERS: Json = {
    "X-Request-Id": {"required": True, "schema": {"type": "string"}, "description": "The client's own, or a new one."},
    "X-Headrace-Generation": {
        "schema": {"type": "string"}, "description": "Of the config under which the call was admitted.",
    },
    "X-Headrace-Revision": {"schema": {"type": "string"}},
}  # fmt: skip


def _object(required: Mapping[str, Json], **optional: Json) -> Json:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_ANY: Json = {}


def _generated(kind: str, **choice: Json) -> Json:
    shared = {"index": _COUNT, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}}
    return _object({
        "id": _TEXT, "object": {"const": kind}, "created": _COUNT, "model": _TEXT,
        "choices": {"type": "array", "minItems": 1, "items": _object(shared | choice, logprobs=_ANY)},
        "usage": {"$ref": REF + "Usage"},
    })  # fmt: skip


ANSWERS: Json = {
    "Error": _object({
        "error": _object({
            "message": _TEXT, "type": _TEXT, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}
        })
    }),
    "Usage": _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}),
    "Completion": _generated("text_completion", text=_TEXT),
    "ChatCompletion": _generated(
        "chat.completion",
        message=_object({"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}}),
    ),
    "Model": _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT,
                      "max_model_len": _COUNT}),
    "Models": _object({"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": REF + "Model"}}}),
    "Tokens": _object({"count": _COUNT, "max_model_len": _COUNT, "tokens": {"type": "array", "items": _COUNT}}),
    "Text": _object({"prompt": _TEXT}),
    "Health": _object({"status": {"enum": ["ok", "unavailable"]}}, reason=_TEXT),
    "Version": _object({"version": _TEXT, "torch": _TEXT, "transformers": _TEXT, "python": _TEXT}),
}  # fmt: skip
