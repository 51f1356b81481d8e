"""`/v1/completions`: every parameter, whole and streamed. Numbers in names are cases of public bug reports."""

from typing import Any

import pytest

Serve = Any
PATH = "/v1/completions"
BLOCK = 16
EOS = 256
BASE: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def texts(chunks: list[dict[str, Any]]) -> list[str]:
    """The text of each choice of a stream."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("stream", [False, True])
async def test_samples_of_several_prompts_come_in_order(serve: Serve, stream: bool) -> None:
    server = await serve()
    prompts = ["one", "two!", "three"]
    body = {"prompt": prompts, "n": 2, "echo": True, "temperature": 1, "seed": 5, "max_tokens": 6, "ignore_eos": True}
    if stream:
        found = texts(await server.events(PATH, **body))
    else:
        choices = (await server.http.post(PATH, json=body)).json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(6))
        found = [choice["text"] for choice in choices]
    assert len(found) == 6
    for index, text in enumerate(found):
        assert text.startswith(prompts[index // 2])
        assert len(text) > len(prompts[index // 2])
    assert found[0] != found[1], "samples differ"
    again = (await server.http.post(PATH, json=body)).json()["choices"]
    assert [choice["text"] for choice in again] == found, "a seed repeats all of them"


async def test_samples_share_their_prompt(serve: Serve) -> None:
    server = await serve()
    body = (await server.complete(prompt="shared", n=4, temperature=1, seed=7, max_tokens=9, ignore_eos=True)).json()
    assert len({choice["text"] for choice in body["choices"]}) == 4
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 36
    greedy = (await server.complete(prompt="shared", n=3, max_tokens=5)).json()["choices"]
    assert len({choice["text"] for choice in greedy}) == 1
    same = await server.complete(n=2, best_of=2)
    assert len(same.json()["choices"]) == 2
    await server.idle()
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["text", "texts", "ids", "id_lists", "chat"])
async def test_stop_works_for_every_form_of_prompt(serve: Serve, form: str, stream: bool) -> None:
    server = await serve()
    ids = server.engine.model.tokenizer("hello stop")["input_ids"]
    prompt = {"text": "hello stop", "texts": ["hello stop"], "ids": ids, "id_lists": [ids]}.get(form)
    chat = {"messages": [{"role": "user", "content": "hello stop"}]}
    path = "/v1/chat/completions" if form == "chat" else PATH
    body = (chat if form == "chat" else {"prompt": prompt}) | BASE | {"max_tokens": 40}

    async def run(**more: Any) -> tuple[str, str]:
        if stream:
            chunks = [chunk["choices"][0] for chunk in await server.events(path, **body, **more)]
            pieces = [chunk.get("text", chunk.get("delta", {}).get("content")) or "" for chunk in chunks]
            return "".join(pieces), chunks[-1]["finish_reason"]
        choice = (await server.http.post(path, json=body | more)).json()["choices"][0]
        return choice.get("text", choice.get("message", {}).get("content")), choice["finish_reason"]

    whole, reason = await run()
    assert reason == "length"
    stop = next(whole[at : at + 2] for at in range(6, len(whole)) if "\ufffd" not in whole[at : at + 2])
    before = whole[: whole.index(stop)]
    assert await run(stop=stop) == (before, "stop")
    assert await run(stop=["\x00never", stop], include_stop_str_in_output=True) == (before + stop, "stop")
    token = ids[0] if stop == whole else server.engine.model.tokenizer(stop)["input_ids"][0]
    assert (await run(stop_token_ids=[token]))[1] == "stop"


async def test_the_finish_reason_matches_what_ended_the_text(serve: Serve) -> None:
    server = await serve()
    end = {"logit_bias": {str(EOS): 100}}

    async def choice(**more: Any) -> dict[str, Any]:
        body = (await server.complete(prompt="x", **more)).json()
        return body["choices"][0] | {"tokens": body["usage"]["completion_tokens"]}

    limit = await choice(max_tokens=5, ignore_eos=True)
    assert (limit["finish_reason"], limit["stop_reason"], limit["tokens"]) == ("length", None, 5)
    # EOS as the very last token that is allowed.
    last = await choice(max_tokens=5, min_tokens=4, **end)
    assert (last["finish_reason"], last["stop_reason"], last["tokens"]) == ("stop", None, 5)
    own = await choice(max_tokens=9, stop_token_ids=[65], logit_bias={"65": 100})
    assert (own["finish_reason"], own["stop_reason"], own["tokens"], own["text"]) == ("stop", 65, 1, "")
    forced = await choice(max_tokens=3, logit_bias={"65": 100}, stop="zz")
    assert (forced["finish_reason"], forced["text"]) == ("length", server.engine.model.tokenizer.decode([65] * 3))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_length_that_does_not_fit_is_a_400_at_once(serve: Serve, stream: bool) -> None:
    server = await serve(kv_cache_bytes=65536, **({} if stream else {"max_model_len": 96}))
    limit = server.engine.max_model_len
    assert limit == (server.engine.loop.stats.blocks_total * BLOCK if stream else 96)
    asked = {"stream": stream, "max_tokens": 1}
    assert (await server.complete(prompt=[7] * (limit - 1), **asked)).status_code == 200
    for size in (limit, limit + 1, server.engine.loop.stats.blocks_total * BLOCK + 1):
        answer = await server.complete(prompt=[7] * size, **asked)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json", "before any event"
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert str(size) in error["message"]
        assert str(limit) in error["message"]
    answer = await server.complete(prompt=[7] * (limit - 4), max_tokens=5, stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert "at most 4" in answer.json()["error"]["message"]
    assert (await server.complete(prompt=[7] * (limit - 4), max_tokens=4, stream=stream)).status_code == 200


async def test_absent_and_zero_max_tokens_have_defined_meanings(serve: Serve) -> None:
    server = await serve(max_model_len=96)
    chat = (await server.chat(max_tokens=None, ignore_eos=True)).json()
    assert chat["usage"]["total_tokens"] == 96, "absent: all that the context leaves"
    assert chat["choices"][0]["finish_reason"] == "length"
    default = (await server.complete(max_tokens=None, ignore_eos=True)).json()
    assert default["usage"]["completion_tokens"] == 16, "OpenAI's default for completions"
    short = (await server.complete(prompt=[7] * 90, max_tokens=None, ignore_eos=True)).json()
    assert short["usage"]["completion_tokens"] == 6
    scored = (await server.complete(prompt="score", max_tokens=0, echo=True, logprobs=1)).json()
    choice = scored["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("score", "length")
    assert scored["usage"]["completion_tokens"] == 0
    assert scored["usage"]["total_tokens"] == 5
    assert choice["logprobs"]["tokens"] == list("score")
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(value < 0 for value in choice["logprobs"]["token_logprobs"][1:])
    assert not {"prompt_logprobs", "token_ids"} & set(choice), "nobody asked"
    nothing = {"prompt": "score", "max_tokens": 0, "echo": True, "return_token_ids": True}
    assert (await server.complete(**nothing)).json()["choices"][0]["token_ids"] == []
    first, *_, last, usage = await server.events(PATH, **nothing, stream_options={"include_usage": True})
    assert first["choices"][0]["prompt_token_ids"] == [ord(char) - 33 for char in "score"]
    assert last["choices"][0] | {"text": ""} == last["choices"][0], "the prompt alone is the text"
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["token_ids"]) == ("length", [])
    assert usage["usage"]["completion_tokens"] == 0
    for answer in (await server.complete(max_tokens=0), await server.chat(max_tokens=0)):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("count", [1, 2, BLOCK, BLOCK + 1])
async def test_exactly_max_tokens_are_generated_and_counted(serve: Serve, count: int) -> None:
    server = await serve()
    asked = {"prompt": "count", "max_tokens": count, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    body = (await server.http.post(PATH, json=asked)).json()
    assert body["usage"]["completion_tokens"] == count
    ids = body["choices"][0]["token_ids"]
    assert len(ids) == count
    chunks = await server.events(PATH, **asked, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == body["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    streamed = [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]]
    assert streamed == ids
    assert chunks[0]["choices"][0]["prompt_token_ids"] == body["choices"][0]["prompt_token_ids"]


OUTSIDE: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [7, 257]}, "prompt"),
    ({"prompt": [[7], [-1]]}, "prompt"),
    ({"logit_bias": {"257": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"stop_token_ids": [257]}, "stop_token_ids"),
    ({"stop_token_ids": [2**40]}, "stop_token_ids"),
]


@pytest.mark.parametrize(("change", "param"), OUTSIDE)
async def test_ids_outside_the_vocabulary_are_a_400_for_that_request_only(
    serve: Serve, change: dict[str, Any], param: str
) -> None:
    server = await serve()
    answer = await server.complete(**change)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "token_out_of_vocabulary")
    assert "0 to 256" in error["message"]
    assert (await server.complete()).status_code == 200


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_the_usage_is_the_last_event_with_no_choices(serve: Serve, path: str) -> None:
    server = await serve()
    what = {"prompt": "hello"} if path == PATH else {"messages": [{"role": "user", "content": "hello"}]}
    body = what | {"n": 2, "max_tokens": 5, "ignore_eos": True}
    *chunks, usage = await server.events(path, **body, stream_options={"include_usage": True})
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 10
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 10
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert chunks
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    for options in ({}, {"include_usage": False}):
        assert all("usage" not in chunk for chunk in await server.events(path, **body, stream_options=options))
    always = await server.events(path, **body, stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in always]
    assert all("prompt_tokens_details" not in chunk["usage"] for chunk in always), "known for all at the end only"
    assert counts == sorted(counts)
    assert counts[-1] == 10


async def test_cached_tokens_are_reported(serve: Serve) -> None:
    server = await serve(enable_prefix_caching=True)
    prompt = [7] * (4 * BLOCK)
    first = (await server.complete(prompt=prompt)).json()["usage"]
    again = (await server.complete(prompt=prompt)).json()["usage"]
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["prompt_tokens_details"]["cached_tokens"] >= 3 * BLOCK
    other = (await server.complete(prompt=prompt, cache_salt="mine")).json()["usage"]
    assert other["prompt_tokens_details"] == {"cached_tokens": 0}
    scored = (await server.complete(prompt=prompt, prompt_logprobs=0)).json()
    assert scored["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert len(scored["choices"][0]["prompt_logprobs"]) == len(prompt)


@pytest.mark.parametrize("top", [0, 1, 3, 20])
async def test_logprobs_have_the_shape_of_completions(serve: Serve, top: int) -> None:
    server = await serve()
    asked = {"prompt": "hello", "max_tokens": 7, "echo": True, "logprobs": top} | BASE
    choice = (await server.http.post(PATH, json=asked)).json()["choices"][0]
    scores = choice["logprobs"]
    assert set(scores) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(value) for value in scores.values()} == {5 + 7}
    assert scores["tokens"][:5] == list("hello")
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    for token, own, best in zip(
        *(scores[key][1:] for key in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert best[token] == own <= 0
        assert max(1, top) <= len(best) <= top + 1
    if top:
        for token, best in zip(scores["tokens"][5:], scores["top_logprobs"][5:], strict=True):
            assert max(best, key=best.__getitem__) == token, "greedy takes the likeliest"
    assert scores["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    chunks = [chunk["choices"][0] for chunk in await server.events(PATH, **asked)]
    for key, value in scores.items():
        assert (
            [item for chunk in chunks for item in chunk["logprobs"][key]] == pytest.approx(value)
            if (key == "token_logprobs")
            else [item for chunk in chunks for item in chunk["logprobs"][key]] == value
        )
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks), "nobody asked"


@pytest.mark.parametrize("stream", [False, True])
async def test_samples_share_the_scores_of_their_prompt(serve: Serve, stream: bool) -> None:
    server = await serve()
    asked = {"prompt": ["hello", "you"], "n": 2, "max_tokens": 3, "echo": True, "logprobs": 2, "seed": 3,
             "ignore_eos": True}  # fmt: skip
    found: dict[int, list[Any]] = {index: [] for index in range(4)}
    if stream:
        for chunk in await server.events(PATH, **asked):
            found[chunk["choices"][0]["index"]] += chunk["choices"][0]["logprobs"]["tokens"]
    else:
        for choice in (await server.http.post(PATH, json=asked)).json()["choices"]:
            found[choice["index"]] = choice["logprobs"]["tokens"]
    for index, tokens in found.items():
        prompt = list(asked["prompt"][index // 2])
        assert tokens[: len(prompt)] == prompt
        assert len(tokens) == len(prompt) + 3


async def test_prompt_logprobs_have_vllms_shape(serve: Serve) -> None:
    server = await serve()
    body = (await server.complete(prompt="hello", prompt_logprobs=2, n=2)).json()
    for choice in body["choices"]:
        first, *others = choice["prompt_logprobs"]
        assert first is None
        assert len(others) == 4
        for char, scores in zip("ello", others, strict=True):
            own = str(server.engine.model.tokenizer(char)["input_ids"][0])
            assert scores[own]["decoded_token"] == char
            assert scores[own]["rank"] >= 1
            assert 2 <= len(scores) <= 3
            assert sorted(item["rank"] for item in scores.values())[:2] == [1, 2]
    chat = (await server.chat(prompt_logprobs=0)).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_sampling_parameters_reach_the_sampler(serve: Serve) -> None:
    server = await serve()

    async def text(**more: Any) -> str:
        answer = await server.complete(**{"prompt": "xyz", "max_tokens": 12, "ignore_eos": True} | more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    greedy = await text()
    assert await text(logit_bias={"66": 100}) == server.engine.model.tokenizer.decode([66] * 12)
    forced = {"logit_bias": {"65": 50, "66": 49}}
    pair = server.engine.model.tokenizer.decode([65, 66])
    assert set(await text(**forced, frequency_penalty=2)) == set(pair)
    assert set(await text(**forced, presence_penalty=2)) != {pair[0]}
    assert set(await text(logit_bias={"65": 8, "66": 7.9}, repetition_penalty=5)) != {pair[0]}
    assert await text(temperature=2, min_p=1) == greedy
    assert await text(temperature=2, top_k=1) == greedy
    assert await text(temperature=2, top_p=1e-6) == greedy
    assert await text(temperature=2, seed=1) != greedy
    assert await text(top_k=-1, priority=3, user="me", metadata={"a": "b"}, store=False) == greedy


async def test_neutral_values_change_nothing(serve: Serve) -> None:
    server = await serve()
    plain = (await server.complete()).json()["choices"]
    neutral = {
        "n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None, "frequency_penalty": 0,
        "presence_penalty": 0.0, "repetition_penalty": 1, "min_p": 0, "logit_bias": {}, "stop": [], "seed": None,
        "response_format": {"type": "text"}, "ignore_eos": None, "skip_special_tokens": None, "stream": None,
        "functions": [], "modalities": ["text"], "service_tier": "auto", "prompt_cache_key": "k",
    }  # fmt: skip
    answer = await server.complete(**neutral)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain


async def test_special_tokens_are_shown_only_where_asked_for(serve: Serve) -> None:
    server = await serve()
    asked = {"logit_bias": {str(EOS): 100}, "ignore_eos": True, "max_tokens": 2}
    assert (await server.complete(**asked)).json()["choices"][0]["text"] == ""
    shown = (await server.complete(**asked, skip_special_tokens=False)).json()["choices"][0]["text"]
    assert shown == "<eos><eos>"
