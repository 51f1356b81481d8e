"""Output constrained to a schema, a regular expression or a choice, in all forms that clients can use."""

import json
from typing import Any, Literal

import openai
import pydantic
import pytest

Serve = Any
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Color(pydantic.BaseModel):
    name: Literal["red", "green"]
    dark: bool


SCHEMA = Color.model_json_schema() | {"additionalProperties": False}
WAYS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}}, "schema"),
    ({"structured_outputs": {"json": SCHEMA}}, "schema"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "schema"),
    ({"guided_json": SCHEMA}, "schema"),
    ({"guided_json": json.dumps(SCHEMA)}, "schema"),
    ({"structured_outputs": {"regex": "(ab|cd){2}"}}, "regex"),
    ({"guided_regex": "(ab|cd){2}"}, "regex"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice"),
    ({"guided_choice": ["yes", "no"]}, "choice"),
]


def fits(text: str, kind: str) -> bool:
    if kind == "schema":
        return Color.model_validate_json(text) is not None
    return text in (("yes", "no") if kind == "choice" else ("abab", "abcd", "cdab", "cdcd"))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_text_follows_the_constraint_in_every_form_of_request(serve: Serve, path: str) -> None:
    server = await serve()
    what: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    for way, kind in WAYS:
        asked = what | way | {"max_tokens": 400, "seed": 1, "n": 2}
        choices = (await server.http.post(path, json=asked)).json()["choices"]
        for choice in choices:
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            assert fits(text, kind), (way, text)
            assert choice["finish_reason"] == "stop"
    texts = {0: "", 1: ""}
    for chunk in await server.events(path, **asked):
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"] if path == COMPLETIONS else choice["delta"].get("content", "")
    assert all(fits(text, "choice") for text in texts.values())


async def test_any_json_object(serve: Serve) -> None:
    server = await serve()
    for way in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        # Closing it early is what a trained model does by itself.
        close = {str(server.engine.model.tokenizer(char)["input_ids"][0]): 100 for char in '"}:'}
        answer = (await server.complete(**way, max_tokens=400, logit_bias=close)).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert isinstance(json.loads(answer["choices"][0]["text"]), dict)


async def test_the_official_client_parses_into_a_model(serve: Serve) -> None:
    server = await serve()
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "a color"}]
        answer = await client.chat.completions.parse(
            model="tiny", messages=messages, response_format=Color, max_completion_tokens=400, seed=2
        )
        assert isinstance(answer.choices[0].message.parsed, Color)
        async with client.chat.completions.stream(
            model="tiny", messages=messages, response_format=Color, max_completion_tokens=400, seed=2
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == answer.choices[0].message.parsed
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(
                model="tiny", messages=messages, response_format=Color, max_completion_tokens=2
            )


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "missing"),
    ({"response_format": {"type": "xml"}}, "response_format", "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wombat"}}}},
     "response_format", "wombat"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": "5"}, "guided_json", "5"),
    ({"guided_json": 5}, "guided_json", "must be a JSON schema"),
    ({"guided_regex": "("}, "guided_regex", "regex"),
    ({"guided_regex": ""}, "guided_regex", "empty"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_choice": [""]}, "guided_choice", "empty"),
    ({"guided_choice": ["x" * 70_000]}, "guided_choice", "65536"),
    ({"structured_outputs": {}}, "structured_outputs", "is empty"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "is empty"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs", "grammar is not a parameter"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "give only one"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "give only one"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_grammar_is_a_400_that_names_it(serve: Serve, stream: bool) -> None:
    server = await serve()
    for change, param, words in BAD:
        answer = await server.complete(stream=stream, **change)
        assert answer.status_code == 400, (change, answer.text)
        error = answer.json()["error"]
        assert error["param"] == param
        assert words in error["message"], error["message"]
        assert error["code"]
    assert (await server.complete()).status_code == 200
