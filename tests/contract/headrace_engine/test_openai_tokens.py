"""`/tokenize`, `/detokenize` and `/v1/models`; and every route of the table is served."""

from typing import Any

import pytest

from headrace_engine.openai.routes import OPERATIONS

Serve = Any


async def test_text_to_tokens_and_back(serve: Serve) -> None:
    server = await serve()
    answer = (await server.http.post("/tokenize", json={"prompt": "héllo<eos>", "return_token_strs": True})).json()
    assert answer["tokens"] == server.engine.model.tokenizer("héllo<eos>")["input_ids"]
    assert answer["count"] == len(answer["tokens"]) == 7
    assert answer["max_model_len"] == 2048
    assert answer["token_strs"][0] == "h"
    assert answer["token_strs"][-1] == "<eos>"
    back = await server.http.post("/detokenize", json={"tokens": answer["tokens"], "model": "tiny"})
    assert back.json() == {"prompt": "héllo<eos>"}
    empty = (await server.http.post("/tokenize", json={"prompt": ""})).json()
    assert (empty["count"], empty["tokens"], empty["token_strs"]) == (0, [], None)
    assert (await server.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
    longer = (await server.http.post("/tokenize", json={"prompt": "x" * 5000})).json()
    assert longer["count"] == 5000, "even a text too long to be served can be counted"


async def test_a_conversation_to_tokens(serve: Serve) -> None:
    server = await serve()
    messages = [{"role": "user", "content": "hi"}]
    assert await server.text_of(messages=messages) == "user: hi\nassistant:"
    counted = (await server.http.post("/tokenize", json={"messages": messages})).json()["count"]
    assert counted == (await server.chat(messages=messages)).json()["usage"]["prompt_tokens"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
    ("/tokenize", {"prompt": ["x"]}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "user"}]}, "messages"),
    ("/tokenize", {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ("/tokenize", {"prompt": "x", "wombat": 1}, "wombat"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [257]}, "tokens"),
    ("/detokenize", {"tokens": ["x"]}, "tokens"),
    ("/detokenize", {"tokens": [1] * (1 << 17 | 1)}, "tokens"),
]


async def test_bad_input_names_the_parameter(serve: Serve) -> None:
    server = await serve()
    for path, body, param in BAD:
        answer = await server.http.post(path, json=body)
        assert answer.status_code == 400, (path, param, answer.text)
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["code"]
    for path in ("/tokenize", "/detokenize"):
        body = {"prompt": "x", "model": "other"} if path == "/tokenize" else {"tokens": [], "model": "other"}
        answer = await server.http.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.path)
async def test_every_route_of_the_table_is_served(serve: Serve, route: Any) -> None:
    server = await serve()
    path = route.path.replace("{name}", "tiny")
    answer = await server.http.request(route.method, path, json=None if route.body is None else {})
    assert answer.status_code == (200 if route.body is None else 400)
    assert route.about
    if route.body is not None:
        schema = route.body.model_json_schema()
        assert schema["additionalProperties"] is False
        assert schema["properties"]
