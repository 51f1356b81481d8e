"""`/v1/chat/completions`: the template, the messages, logprobs, the shape of answers."""

from typing import Any

import pytest

Serve = Any
PATH = "/v1/chat/completions"
TEMPLATE = (
    "{%- for m in messages %}{{ m.role }}{% if m.name %}({{ m.name }}){% endif %}: {{ m.content }}\n{% endfor -%}"
    "{% if mood is defined %}[{{ mood }}]{% endif %}{% if reasoning_effort %}<{{ reasoning_effort }}>{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


async def test_every_role_and_form_of_content_is_rendered(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "hello", "refusal": None, "annotations": [], "tool_calls": None},
        {"role": "user", "content": ""},
    ]
    text = await server.text_of(messages=messages)
    assert text == "system: be brief\nsystem: two\nparts\nuser(ann): hi\nassistant: hello\nuser: \nassistant:"
    answer = await server.chat(messages=messages)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == len(text)
    knows = await serve(template=TEMPLATE + "{# #}{% if 'developer' == messages[0].role %}!{% endif %}")
    assert (await knows.text_of(messages=messages[:1])).startswith("developer: be brief")


async def test_the_last_message_can_be_continued(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one, "}]
    for more in ({}, {"add_generation_prompt": False}):
        text = await server.text_of(messages=messages, continue_final_message=True, **more)
        assert text == "user: count\nassistant: one, "
    answer = await server.chat(messages=messages, continue_final_message=True)
    assert answer.json()["usage"]["prompt_tokens"] == len("user: count\nassistant: one, ")
    bare = await server.text_of(messages=messages, add_generation_prompt=False)
    assert bare == "user: count\nassistant: one, \n"
    both = await server.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "continue_final_message")


async def test_variables_of_the_template(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    messages = [{"role": "user", "content": "x"}]
    assert await server.text_of(messages=messages, chat_template_kwargs={"mood": "glad"}) == "user: x\n[glad]assistant:"
    plain = (await server.chat(messages=messages)).json()["usage"]["prompt_tokens"]
    effort = (await server.chat(messages=messages, reasoning_effort="low")).json()["usage"]["prompt_tokens"]
    assert effort == plain + len("<low>")
    for name in ("messages", "tokenize", "tools", "self", "chat_template", "add_generation_prompt"):
        answer = await server.chat(messages=messages, chat_template_kwargs={name: []})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")
        assert name in answer.json()["error"]["message"]
    ignorant = await serve()
    answer = await ignorant.chat(reasoning_effort="low")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")


async def test_a_model_without_a_template_says_so(serve: Serve) -> None:
    server = await serve(template="")
    answer = await server.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_chat_template")
    assert "/v1/completions" in answer.json()["error"]["message"]
    assert (await server.complete()).status_code == 200


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ messages[0].content.x.y }}", "{% oops", "{{ undefined() }}"])
async def test_a_template_that_fails_is_a_400_that_names_it(serve: Serve, template: str) -> None:
    server = await serve(template=template)
    answer = await server.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "template_error")
    assert "chat template refuses" in answer.json()["error"]["message"]


async def test_the_first_chunk_carries_the_role_and_the_stream_says_what_the_body_says(serve: Serve) -> None:
    server = await serve()
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    whole = (await server.http.post(PATH, json=asked)).json()
    message = whole["choices"][0]["message"]
    assert (message["role"], message["refusal"]) == ("assistant", None)
    assert whole["object"] == "chat.completion"
    chunks = await server.events(PATH, **asked)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(set(delta) == {"content"} for delta in deltas[1:])
    assert "".join(delta["content"] for delta in deltas) == message["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 9 + ["length"]


async def test_samples_of_a_chat(serve: Serve) -> None:
    server = await serve()
    asked = {"n": 3, "temperature": 1, "seed": 4, "max_tokens": 8, "ignore_eos": True}
    whole = (await server.chat(**asked)).json()
    said = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(said)) == 3
    assert whole["usage"]["completion_tokens"] == 24
    streamed = ["", "", ""]
    for chunk in await server.events(PATH, messages=[{"role": "user", "content": "hi"}], **asked):
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"]["content"]
    assert streamed == said


@pytest.mark.parametrize("top", [None, 0, 2, 20])
async def test_logprobs_have_the_shape_of_chats_and_their_bytes_are_the_text(serve: Serve, top: int | None) -> None:
    server = await serve()
    # Two bytes of one character, each a token of its own, then the end.
    asked = {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0, "logprobs": True,
        "logit_bias": {"256": 100}, "guided_regex": "éz?",
    } | ({} if top is None else {"top_logprobs": top})  # fmt: skip
    choice = (await server.http.post(PATH, json=asked)).json()["choices"][0]
    assert choice["message"]["content"] == "é"
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    assert len(content) == 3
    assert b"".join(bytes(item["bytes"] or []) for item in content).decode() == "é"
    assert content[-1]["bytes"] is None
    assert content[-1]["token"] == "<eos>"
    for item in content:
        assert len(item["top_logprobs"]) == (top or 0)
        assert item["logprob"] <= 0
        values = [best["logprob"] for best in item["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert all(set(best) == {"token", "logprob", "bytes"} for best in item["top_logprobs"])
    chunks = await server.events(PATH, **asked)
    streamed = [item for chunk in chunks[1:] for item in chunk["choices"][0]["logprobs"]["content"]]
    assert [item["token"] for item in streamed] == [item["token"] for item in content]
    assert chunks[0]["choices"][0]["logprobs"] is None


async def test_token_ids_of_a_chat(serve: Serve) -> None:
    server = await serve()
    asked = {"return_token_ids": True, "ignore_eos": True}
    whole = (await server.chat(**asked)).json()
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    chunks = await server.events(
        PATH, messages=[{"role": "user", "content": "hi"}], max_tokens=4, temperature=0, **asked
    )
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    ids = [token for chunk in chunks[1:] for token in chunk["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert len(ids) == 4


async def test_both_names_of_the_limit(serve: Serve) -> None:
    server = await serve()
    for name in ("max_tokens", "max_completion_tokens"):
        answer = await server.chat(**{"max_tokens": None, name: 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
    assert (await server.chat(max_tokens=3, max_completion_tokens=3)).status_code == 200
    answer = await server.chat(max_tokens=3, max_completion_tokens=4)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")
    answer = await server.chat(max_tokens=None, max_completion_tokens=9999)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")
