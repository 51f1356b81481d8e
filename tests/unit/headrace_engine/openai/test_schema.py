"""Request bodies: valid ones are parsed, and all others get an error that names the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from headrace_engine.http.errors import ApiError
from headrace_engine.openai.constraints import Constraint, constraint_of
from headrace_engine.openai.schema import ChatBody, CompletionBody, parse
from headrace_engine.openai.tokens import DetokenizeBody, TokenizeBody
from headrace_engine.openai.tool_grammar import forced_schema

KINDS: list[type[Any]] = [CompletionBody, ChatBody, TokenizeBody, DetokenizeBody]
HELLO = [{"role": "user", "content": "hi"}]


def completion(**values: Any) -> CompletionBody:
    return parse(json.dumps({"prompt": "x"} | values).encode(), CompletionBody)


def chat(**values: Any) -> ChatBody:
    return parse(json.dumps({"messages": HELLO} | values).encode(), ChatBody)


def refusal(**values: Any) -> dict[str, Any]:
    with pytest.raises(ApiError) as refused:
        constraint_of(chat(**values))
    assert refused.value.status == 400
    return dict(refused.value.body["error"])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]]), ([], []), ([[]], [[]])],
)
def test_the_four_forms_of_a_prompt(prompt: object, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_a_long_list_of_ids_is_checked_once() -> None:
    ids = list(range(200_000))
    assert completion(prompt=ids).prompts() == [ids]
    with pytest.raises(ApiError, match=r"prompt\[199999\]"):
        completion(prompt=[*ids[:-1], "x"])


def test_null_is_absent_but_unknown_names_stay_unknown() -> None:
    assert completion(ignore_eos=None, min_tokens=None, echo=None).min_tokens == 0
    for kind in KINDS:
        described = kind.model_json_schema()
        for name, field in described["properties"].items():
            if name not in described.get("required", ()):
                nullable = (
                    "null" in field.get("type", ())
                    or {"type": "null"} in field.get("anyOf", ())
                    or name == "prediction"
                )
                assert nullable, (kind, name)
    with pytest.raises(ApiError, match="wombat is not a parameter"):
        completion(wombat=None)


def test_stops_and_biases() -> None:
    assert completion(stop="a").stops == ["a"]
    assert completion(stop=["", "a"]).stops == ["a"]
    assert completion().stops == completion(stop="").stops == []
    assert completion(logit_bias={"5": 1, " 6": -2.5}).biases == {5: 1.0, 6: -2.5}


SCHEMA = {"type": "object"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", None, "response_format")),
        ({"guided_json": '{"type": "object"}'}, Constraint("json_schema", SCHEMA, "guided_json")),
        ({"structured_outputs": {"choice": ["a"]}}, Constraint("choice", ("a",), "structured_outputs")),
        ({"guided_regex": "a+"}, Constraint("regex", "a+", "guided_regex")),
        ({"tools": TOOLS}, None),
        ({"tools": TOOLS, "tool_choice": "none", "guided_regex": "a"}, Constraint("regex", "a", "guided_regex")),
    ],
)
def test_the_constraint_of_a_body(values: dict[str, Any], expected: Constraint | None) -> None:
    assert constraint_of(chat(**values)) == expected


def test_constraints_that_contradict() -> None:
    assert refusal(guided_regex="a", guided_choice=["a"])["code"] == "conflicting_parameters"
    assert refusal(response_format={"type": "json_object"}, tools=TOOLS)["param"] == "response_format"
    forced = {"type": "function", "function": {"name": "g"}}
    found = constraint_of(chat(tools=TOOLS, tool_choice=forced))
    assert found == Constraint(
        "json_schema", {"type": "object", "properties": {}, "additionalProperties": False}, "tools"
    )


def test_the_schema_of_forced_calls_moves_references_with_their_target() -> None:
    parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"x": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/x"}, "again": {"$ref": "#"}, "$id": {"type": "string"}},
    }
    body = chat(tools=[*TOOLS, {"type": "function", "function": {"name": "h", "parameters": parameters}}])
    assert body.tools is not None
    schema = forced_schema(body.tools, name=None, parallel=False)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]] == ["f", "g", "h"]
    moved = schema["$defs"]["arguments2"]
    assert moved["properties"] == {
        "a": {"$ref": "#/$defs/arguments2/$defs/x"},
        "again": {"$ref": "#/$defs/arguments2"},
        "$id": {"type": "string"},
    }
    assert "$schema" not in moved
    assert "maxItems" not in forced_schema(body.tools, name=None, parallel=True)
    assert forced_schema(body.tools, name="h", parallel=True) == parameters


def test_the_deepest_problem_is_reported_with_its_place() -> None:
    error = refusal(messages=[*HELLO, {"role": "user", "content": [{"type": "text", "text": 5}]}])
    assert error["message"] == "messages[1].content[0].text: input should be a valid string, not 5"
    error = refusal(stop=["a"] * 17)
    assert "at most 16" in error["message"]
    assert refusal(stop={"a": 1})["message"] == "stop: must be a string or a list of strings"
    assert refusal(temperature="x" * 500)["message"].endswith("x...")


NAMES = st.sampled_from(sorted({name for kind in KINDS for name in kind.model_fields}))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(KINDS), st.dictionaries(NAMES, VALUES, max_size=5), st.booleans())
def test_any_body_is_read_or_refused_with_a_message(kind: type[Any], values: dict[str, Any], valid: bool) -> None:
    if valid:
        values |= {"prompt": "x"} if kind is CompletionBody else {"messages": HELLO} if kind is ChatBody else {}
    try:
        body = parse(json.dumps(values).encode(), kind)
        if isinstance(body, CompletionBody | ChatBody):
            constraint_of(body)
    except ApiError as refused:
        told = refused.body["error"]
        problems = [name for name in ("message", "code") if not told[name]]
    else:
        return
    assert (told["type"], problems) == ("invalid_request_error", [])
    assert told["param"] is None or isinstance(told["param"], str)


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\ud80nfNaI1e9 ', max_size=30).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        parse(raw, CompletionBody)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_in_the_published_schema(kind: type[BaseModel]) -> None:
    schema = kind.model_json_schema()
    names = {field.alias or name for name, field in kind.model_fields.items()}
    assert set(schema["properties"]) == names
    json.dumps(schema)
