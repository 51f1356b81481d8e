"""What a client can get wrong: always OpenAI's error body with the parameter and a code, never a 5xx, no harm done."""

import json
from typing import Any

import pytest

Serve = Any
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": ["a", ""]}, "prompt", "empty"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": [999_999]}, "prompt", "999999"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": [300]}, "prompt", "0 to 256"),
    ({"prompt": {"a": 1}}, "prompt", "must be a string"),
    ({"prompt": 5}, "prompt", "must be a string"),
    ({"prompt": ["a", 5]}, "prompt", "prompt[1]: input should be a valid string"),
    ({"prompt": [5, "a"]}, "prompt", "prompt[1]: input should be a valid integer"),
    ({"prompt": [[5], [True]]}, "prompt", "prompt[1][0]"),
    ({"prompt": "x" * 5000}, "prompt", "5000 tokens"),
    ({"prompt": "x" * 2048}, "prompt", "2048"),
    ({"prompt": ["x"] * 129}, "prompt", "one call may have 128"),
    ({"prompt": ["x"] * 43, "n": 3}, "n", "129 generations; one call may have 128"),
    ({"n": 129}, "n", "128"),
    ({"n": 10**30}, "n", "128"),
    ({"n": 0}, "n", "greater than or equal to 1, not 0"),
    ({"best_of": 3}, "best_of", "not ranked"),
    ({"n": 2, "best_of": 1}, "best_of", "not ranked"),
    ({"max_tokens": 4000}, "max_tokens", "at most 2043"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0, not -1"),
    ({"max_tokens": 0}, "max_tokens", "echo"),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"min_tokens": 5}, "min_tokens", "exceeds the 4 tokens"),
    ({"temperature": -0.1}, "temperature", "greater"),
    ({"temperature": 2.1}, "temperature", "less"),
    ({"temperature": "hot"}, "temperature", "number, not hot"),
    ({"temperature": True}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"min_p": 1.5}, "min_p", "less"),
    ({"top_k": -2}, "top_k", "greater"),
    ({"presence_penalty": 3}, "presence_penalty", "less"),
    ({"frequency_penalty": -3}, "frequency_penalty", "greater"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "less than or equal to 100"),
    ({"logit_bias": [5]}, "logit_bias", "dict"),
    ({"logit_bias": {str(at): 1 for at in range(2000)}}, "logit_bias", "1024"),
    ({"logprobs": 21}, "logprobs", "20"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "greater"),
    ({"stop": 5}, "stop", "must be a string or a list of strings"),
    ({"stop": ["a"] * 17}, "stop", "at most 16"),
    ({"stop": "x" * 1025}, "stop", "1024"),
    ({"stop": ["a", 5]}, "stop", "stop[1]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids", "128"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"cache_salt": ""}, "cache_salt", "at least 1"),
    ({"seed": 2**63}, "seed", "less"),
    ({"suffix": "end"}, "suffix", "not supported"),
    ({"user": 5}, "user", "string"),
    ({"wombat": 1}, "wombat", "wombat is not a parameter"),
    ({"stream_options": {"wombat": 1}}, "stream_options", "stream_options.wombat is not a parameter"),
]
BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": None}, "messages", "required"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": [{"role": "boss", "content": "x"}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages", "messages[0]: content is missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0].content: must be a string or"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages",
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "x", "wombat": 1}]}, "messages", "messages[0].wombat is not"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "no tools here"),
    ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages", "max_model_len"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": 1}, "logprobs", "boolean"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"n": 1000}, "n", "128"),
    ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
    ({"audio": {"voice": "x"}}, "audio", "not supported"),
    ({"function_call": "auto"}, "function_call", "not supported"),
    ({"echo": True}, "echo", "not a parameter"),
    ({"prompt": "x"}, "prompt", "not a parameter"),
]  # fmt: skip


def check(answer: Any, param: str, words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json", "before any event"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert words in error["message"], error["message"]
    assert error["code"], error


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_is_a_400_that_names_the_parameter_and_the_next_request_works(
    serve: Serve, stream: bool
) -> None:
    server = await serve()
    for change, param, words in BAD:
        check(await server.complete(**{"stream": stream} | change), param, words)
    for change, param, words in BAD_CHATS:
        check(await server.chat(**{"stream": stream} | change), param, words)
    assert (await server.complete()).status_code == 200
    assert (await server.chat()).status_code == 200
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


async def test_options_of_a_stream_need_one_and_scores_of_the_prompt_none(serve: Serve) -> None:
    server = await serve()
    check(await server.complete(stream=False, stream_options={"include_usage": True}), "stream_options", "stream")
    check(await server.complete(stream=True, prompt_logprobs=1), "prompt_logprobs", "cannot be used with stream")


SURROGATES: list[tuple[str, str]] = [
    (COMPLETIONS, '{"prompt": "a\\ud800b"}'),
    (COMPLETIONS, '{"prompt": ["ok", "\\udfff"]}'),
    (COMPLETIONS, '{"prompt": "x", "stop": "\\ud83d"}'),
    (COMPLETIONS, '{"prompt": "x", "stop": ["a", "\\ud83dx"]}'),
    (COMPLETIONS, '{"prompt": "x", "user": "\\ud800"}'),
    (COMPLETIONS, '{"prompt": "x", "model": "\\ud800"}'),
    (COMPLETIONS, '{"prompt": "x", "\\ud800": 1}'),
    (COMPLETIONS, '{"prompt": "x", "guided_regex": "\\ud800"}'),
    (COMPLETIONS, '{"prompt": "x", "metadata": {"a": "\\ud800"}}'),
    (CHAT, '{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    (CHAT, '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}]}'),
    (CHAT, '{"messages": [{"role": "user", "content": "x", "name": "\\ud800"}]}'),
    (CHAT, '{"messages": [], "tools": [{"type": "function", "function": {"name": "f", "description": "\\ud800"}}]}'),
    (CHAT, '{"messages": [], "chat_template_kwargs": {"a": "\\ud800"}}'),
    ("/tokenize", '{"prompt": "\\ud800"}'),
]


@pytest.mark.parametrize(("path", "raw"), SURROGATES)
async def test_half_a_character_anywhere_is_a_400(serve: Serve, path: str, raw: str) -> None:
    server = await serve()
    answer = await server.http.post(path, content=raw)
    assert answer.status_code == 400
    assert "surrogate" in answer.json()["error"]["message"]


DEEP = "[" * 5000 + "]" * 5000
NO_NUMBERS: list[tuple[str, str, str]] = [
    (COMPLETIONS, '{"prompt": "x", "temperature": NaN}', "NaN"),
    (COMPLETIONS, '{"prompt": "x", "temperature": 1e999}', "finite"),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": -Infinity}', "Infinity"),
    (COMPLETIONS, '{"prompt": "x", "logit_bias": {"5": NaN}}', "NaN"),
    (COMPLETIONS, '{"prompt": "x", "logit_bias": {"5": 1e999}}', "finite"),
    (COMPLETIONS, '{"prompt": "x", "guided_json": {"minimum": 1e999}}', "too large"),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": 1e5}', "integer"),
    (COMPLETIONS, '{"prompt": "x", "seed": ' + "9" * 5000 + "}", "out of range"),
    (COMPLETIONS, '{"prompt": "x", "seed": ' + "9" * 4000 + "}", "less"),
    (CHAT, '{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": [1e999]}}', "too large"),
    (CHAT, '{"messages": [], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1e999}}}]}',
     "too large"),
    (COMPLETIONS, '{"prompt": ' + DEEP + "}", "recursion limit"),
    (COMPLETIONS, '{"prompt": "x", "guided_json": {"a": ' + DEEP + "}}", "recursion limit"),
    (CHAT, '{"messages": ' + DEEP + "}", "recursion limit"),
    (CHAT, '{"messages": [], "tools": ' + DEEP + "}", "recursion limit"),
    (COMPLETIONS, "{", "not JSON"),
    (COMPLETIONS, "", "not JSON"),
    (COMPLETIONS, "[1]", "object"),
    (COMPLETIONS, '"x"', "object"),
    (COMPLETIONS, '{"prompt": "x"} {}', "trailing"),
    ("/detokenize", '{"tokens": [1e999]}', "integer"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "raw", "words"), NO_NUMBERS)
async def test_a_body_that_is_not_json_or_too_deep_is_a_400(serve: Serve, path: str, raw: str, words: str) -> None:
    server = await serve()
    answer = await server.http.post(path, content=raw)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"], error["message"]
    assert error["code"]
    assert len(error["message"]) < 500
    assert (await server.complete()).status_code == 200


async def test_bytes_that_are_not_text_are_a_400(serve: Serve) -> None:
    server = await serve()
    for raw in (b"\xff\xfe", b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xff"}', b"\x00" * 100):
        answer = await server.http.post(COMPLETIONS, content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_json"


async def test_any_text_that_is_valid_is_served(serve: Serve) -> None:
    server = await serve()
    for text in ("\x00", "\ufffe", "\U0010ffff", "e\u0301", "\u202e", "\r\n", " ", "<eos>"):
        answer = await server.http.post(COMPLETIONS, content=json.dumps({"prompt": text, "max_tokens": 1}))
        assert answer.status_code == 200, (text, answer.text)
        answer = await server.chat(messages=[{"role": "user", "content": text}], stop=[text], user=text)
        assert answer.status_code == 200, (text, answer.text)
