"""Tools: rendered by the template, forced by a grammar, read back from the text, whole and streamed."""

import json
from typing import Any

import openai
import pytest

Serve = Any
PATH = "/v1/chat/completions"
TEMPLATE = (
    "{%- if tools %}Call as <tool_call></tool_call>: {% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif -%}"
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{{ '\n' }}{% endfor -%}{% if add_generation_prompt %}assistant:{% endif %}"
)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two digits.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"digit": {"enum": [1, 2, 3]}},
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [ADD, NOW]
HELLO: Any = [{"role": "user", "content": "hi"}]
# What a trained model would write; here a grammar makes a random one write it.
TWO_CALLS = (
    r'Well\.\n<tool_call>\n\{"name": "add", "arguments": \{"a": [123], "b": [123]\}\}\n</tool_call>\n'
    r'<tool_call>\n\{"name": "now", "arguments": \{\}\}\n</tool_call>'
)


async def ask(server: Any, *, stream: bool, **body: Any) -> dict[str, Any]:
    """A choice, or a stream put together as clients do: message, finish_reason, and for streams the deltas."""
    asked = {"messages": HELLO, "tools": TOOLS, "max_tokens": 300, "temperature": 1, "seed": 1} | body
    if not stream:
        answer = await server.http.post(PATH, json=asked)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0])
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    chunks = await server.events(PATH, **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    for delta in deltas:
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert call["function"]["name"]
                message["tool_calls"].append({"id": call["id"], "type": call["type"], "function": {
                    "name": call["function"]["name"], "arguments": ""}})  # fmt: skip
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
    return {"message": message, "finish_reason": chunks[-1]["choices"][0]["finish_reason"], "deltas": deltas}


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_read_from_the_text(serve: Serve, stream: bool) -> None:
    server = await serve(template=TEMPLATE)
    choice = await ask(server, stream=stream, guided_regex=TWO_CALLS)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Well."
    add, now = message["tool_calls"]
    assert add["type"] == "function"
    assert add["function"]["name"] == "add"
    assert set(json.loads(add["function"]["arguments"])) == {"a", "b"}
    assert now["function"] == {"name": "now", "arguments": "{}"}
    assert add["id"] != now["id"]
    if stream:
        pieces = [delta for delta in choice["deltas"] if "tool_calls" in delta]
        assert len(pieces) > 4, "arguments come as they are written"
    only = await ask(server, stream=stream, guided_regex=TWO_CALLS, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in only["message"]["tool_calls"]] == ["add"]


@pytest.mark.parametrize("stream", [False, True])
async def test_text_without_calls_stays_text(serve: Serve, stream: bool) -> None:
    server = await serve(template=TEMPLATE)
    choice = await ask(server, stream=stream, guided_regex=r"no call, <tool_but no\n")
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "no call, <tool_but no\n"
    assert not choice["message"].get("tool_calls")
    off = await ask(server, stream=stream, guided_regex=TWO_CALLS, tool_choice="none")
    assert "<tool_call>" in off["message"]["content"]
    assert off["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_can_be_required_or_named(serve: Serve, stream: bool) -> None:
    server = await serve(template=TEMPLATE)
    one = {"parallel_tool_calls": False}
    choice = await ask(server, stream=stream, tool_choice="required", **one)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("add", "now")
    named = {"type": "function", "function": {"name": "add"}}
    choice = await ask(server, stream=stream, tool_choice=named)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]).keys() == {"a", "b"}
    assert choice["finish_reason"] == "tool_calls"
    cut = await ask(server, stream=stream, tool_choice=named, max_tokens=3)
    assert cut["finish_reason"] == "length"


async def test_each_sample_calls_for_itself(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    answer = await server.chat(tools=TOOLS, tool_choice="required", n=3, temperature=1, seed=2, max_tokens=300)
    choices = answer.json()["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(choices) == 3
    assert len(ids) == len(set(ids)) >= 3


async def test_tools_and_calls_of_the_past_are_rendered(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": ""}}]},
        {"role": "tool", "content": [{"type": "text", "text": "noon"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": '{"\\ud800'}}]},
    ]
    text = await server.text_of(messages=messages, tools=TOOLS)
    assert (
        text
        == (
            'Call as <tool_call></tool_call>: {"type": "function", "function": {"name": "add", '
            '"description": "Add two digits.", "parameters": '
            + json.dumps(ADD["function"]["parameters"])  # type: ignore[index]
            + '}}\n{"type": "function", "function": {"name": "now"}}\nuser: hi\n'
            'assistant: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\ntool: 3\n'
            'assistant: <tool_call>{"name": "now", "arguments": {}}</tool_call>\ntool: noon\n'
            'assistant: <tool_call>{"name": "now", "arguments": "{\\"\\\\ud800"}</tool_call>\nassistant:'
        )
    )
    answer = await server.chat(messages=messages, tools=TOOLS)
    assert answer.json()["usage"]["prompt_tokens"] == len(text)
    hidden = await server.chat(messages=messages, tools=TOOLS, tool_choice="none")
    assert hidden.json()["usage"]["prompt_tokens"] == len(text) - text.index("user: hi")


async def test_tools_for_a_template_without_them_are_a_400(serve: Serve) -> None:
    server = await serve()
    for choice in ("auto", "required", {"type": "function", "function": {"name": "add"}}):
        answer = await server.chat(tools=TOOLS, tool_choice=choice)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        assert "does not support tools" in answer.json()["error"]["message"]
    assert (await server.chat(tools=TOOLS, tool_choice="none")).status_code == 200
    assert (await server.chat(tools=[])).status_code == 200


async def test_the_parser_comes_from_the_template_or_the_flag(serve: Serve) -> None:
    unreadable = TEMPLATE.replace("tool_call>", "invoke>")
    server = await serve(template=unreadable)
    answer = await server.chat(tools=TOOLS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
    assert "--tool-call-parser" in answer.json()["error"]["message"]
    assert (await server.chat(tools=TOOLS, tool_choice="required", max_tokens=300)).status_code == 200
    told = await serve(template=unreadable, http={"tool_call_parser": "hermes"})
    assert (await ask(told, stream=False, guided_regex=TWO_CALLS))["finish_reason"] == "tool_calls"
    off = await serve(template=TEMPLATE, http={"tool_call_parser": "none"})
    assert (await off.chat(tools=TOOLS)).status_code == 400
    llama = await serve(template=TEMPLATE, http={"tool_call_parser": "llama3_json"})
    choice = await ask(llama, stream=True, guided_regex=r'\{"name": "now", "parameters": \{\}\}')
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]


async def test_the_official_client_calls_and_answers(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        tools: Any = TOOLS
        asked: dict[str, Any] = {"model": "tiny", "tools": tools, "max_tokens": 300, "seed": 1}
        whole = await client.chat.completions.create(messages=HELLO, extra_body={"guided_regex": TWO_CALLS}, **asked)
        message = whole.choices[0].message
        assert message.tool_calls
        assert [call.function.name for call in message.tool_calls if call.type == "function"] == ["add", "now"]
        history = [*HELLO, message, {"role": "tool", "content": "4", "tool_call_id": message.tool_calls[0].id}]
        again = await client.chat.completions.create(messages=history, tool_choice="none", **asked)
        assert again.choices[0].message.content is not None
        async with client.chat.completions.stream(
            messages=HELLO, extra_body={"guided_regex": TWO_CALLS}, **asked
        ) as stream:
            kinds = {event.type async for event in stream}
            final = (await stream.get_final_completion()).choices[0]
        assert "tool_calls.function.arguments.done" in kinds
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls is not None
        assert [call.function.name for call in final.message.tool_calls] == ["add", "now"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "tools[0].function.name"),
    ({"tools": [NOW, NOW]}, "tools", "'now'"),
    ({"tools": [NOW] * 200}, "tools", "128"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "wombat"}}}],
      "tool_choice": "required"}, "tools", "wombat"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice", "must be"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice", "gone"),
    ({"tools": [NOW], "response_format": {"type": "json_object"}}, "response_format", "no tool could be called"),
    ({"tools": [NOW], "tool_choice": "required", "guided_regex": "a"}, "tools", "give only one"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages", "assistant"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages", "role tool"),
    ({"messages": [{"role": "assistant"}]}, "messages", "content is missing"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages",
     "messages[0].tool_calls[0].function.arguments"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported"),
]  # fmt: skip


async def test_wrong_tools_are_a_400_that_names_them(serve: Serve) -> None:
    server = await serve(template=TEMPLATE)
    for change, param, words in WRONG:
        answer = await server.chat(**change)
        assert answer.status_code == 400, (change, answer.text)
        error = answer.json()["error"]
        assert error["param"] == param, (change, error)
        assert words in error["message"], error["message"]
        assert error["code"]
