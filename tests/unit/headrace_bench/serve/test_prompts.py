"""Prompts of a length, and the bodies that carry them."""

import json
from dataclasses import replace

import pytest

from headrace_bench.serve.prompts import Api, Composer, Dialect, text_words
from headrace_core.workload.plans import PlannedRequest, RequestKind

TEXT = Dialect(ids=False, tokens_per_word=2.0, overhead=10.0)


def planned(tokens: int = 30, **more: object) -> PlannedRequest:
    return PlannedRequest(at=0.0, prompt_tokens=tokens, output_tokens=5, kind=RequestKind.SHORT, **more)


def compose(dialect: Dialect, request: PlannedRequest, *, number: int = 0, salt: str = "s") -> dict:
    message = Composer(dialect=dialect, model="m", salt=salt)(request, number)
    assert message.path == ("/v1/chat/completions" if dialect.api is Api.CHAT else "/v1/completions")
    return json.loads(message.body)


def test_ids_have_the_exact_length_and_depend_on_salt_and_number() -> None:
    prompts = [
        compose(Dialect(), planned(), number=number, salt=salt)["prompt"]
        for number, salt in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    ]
    assert all(len(prompt) == 30 for prompt in prompts)
    assert prompts[0] == prompts[1]
    assert len({tuple(prompt) for prompt in prompts}) == 3


def test_text_has_the_words_that_make_the_tokens() -> None:
    body = compose(TEXT, planned())
    assert len(body["prompt"].split()) == 10  # (30 - 10) / 2
    assert body["prompt"][0].isupper()
    assert compose(replace(TEXT, overhead=99.0), planned())["prompt"] == "The"


@pytest.mark.parametrize("dialect", [Dialect(), TEXT])
def test_a_group_shares_its_start_and_no_more(dialect: Dialect) -> None:
    first, second, other = (
        compose(dialect, planned(60, prefix_tokens=20, prefix_group=group), number=number)["prompt"]
        for number, group in ((0, 0), (1, 0), (2, 1))
    )
    split = [item if isinstance(item, list) else item.split() for item in (first, second, other)]
    start = 20 if dialect.ids else 10
    assert split[0][:start] == split[1][:start]
    assert split[0][:start] != split[2][:start]
    assert split[0][start:] != split[1][start:]


def test_a_given_prompt_goes_as_it_is_to_either_api() -> None:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
    assert compose(Dialect(), planned(content="hello there"))["prompt"] == "hello there"
    assert compose(Dialect(), planned(content=messages))["prompt"] == "system: be brief\nuser: hello\nassistant:"
    chat = Dialect(api=Api.CHAT)
    assert compose(chat, planned(content=messages))["messages"] == list(messages)
    assert compose(chat, planned(content="hi"))["messages"] == [{"role": "user", "content": "hi"}]


def test_a_body_holds_only_what_the_dialect_has() -> None:
    full = compose(Dialect(extra={"top_k": 3}), planned())
    assert {name: full[name] for name in ("max_tokens", "ignore_eos", "temperature", "top_k", "stream")} == {
        "max_tokens": 5, "ignore_eos": True, "temperature": 0.0, "top_k": 3, "stream": True,
    }  # fmt: skip
    bare = Dialect(ignore_eos=False, usage=False, temperature=None, limit="max_completion_tokens")
    assert set(compose(bare, planned())) == {"model", "stream", "prompt", "max_completion_tokens"}


def test_words_are_sentences_and_the_same_for_a_salt() -> None:
    words = text_words(25, salt="x")
    assert len(words) == 25
    assert words == text_words(25, salt="x") != text_words(25, salt="y")
    assert [index for index, word in enumerate(words) if word.endswith(".")] == [9, 19]
