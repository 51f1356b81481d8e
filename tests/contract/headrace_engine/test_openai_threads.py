"""A huge prompt, or anything else that is slow, never holds up the event loop."""

import asyncio
import copy
import threading
from dataclasses import replace
from typing import Any

import pytest

from headrace_engine.openai import routes as openai_api
from headrace_engine.openai import streaming
from headrace_engine.sampling.grammar import GrammarCompiler

Serve = Any
MEGABYTE = "a long story " * 80_000


class Watched:
    """A tokenizer that records the calling threads, and whose work on long texts can be held up."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.threads: dict[str, set[str]] = {}
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _note(self, what: str, size: int) -> None:
        self.threads.setdefault(what, set()).add(threading.current_thread().name)
        if size > 1_000_000:
            self.begun.set()
            self.go_on.wait()

    def __call__(self, text: str, **options: Any) -> Any:
        self._note("tokenize", len(text))
        # The tokens of a text this long do not matter: it is far too long to be served.
        return self._inner(text[:100_000], **options)

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        self._note("render", sum(len(message["content"]) for message in messages))
        return self._inner.apply_chat_template(messages, **options)

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        self._note("pieces", 0)
        return self._inner.convert_ids_to_tokens(ids)


@pytest.fixture
async def watched(serve: Serve) -> tuple[Any, Watched]:
    server = await serve()
    tokenizer = Watched(copy.deepcopy(server.engine.model.tokenizer))
    object.__setattr__(server.engine, "model", replace(server.engine.model, tokenizer=tokenizer))
    return server, tokenizer


async def test_slow_work_is_done_in_threads_of_its_own(
    watched: tuple[Any, Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tokenizer = watched

    def spy(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            tokenizer._note(name, 0)
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, noted)

    spy(GrammarCompiler, "compile")
    spy(openai_api, "parse")
    spy(streaming, "whole_body")
    chat = {"messages": [{"role": "user", "content": MEGABYTE}]}
    assert (await server.http.post("/v1/completions", json={"prompt": MEGABYTE})).status_code == 400
    assert (await server.http.post("/v1/chat/completions", json=chat)).status_code == 400
    spelled = {"prompt": MEGABYTE[:40_000], "return_token_strs": True}
    assert (await server.http.post("/tokenize", json=spelled)).status_code == 200
    assert set(tokenizer.threads) == {"tokenize", "render", "pieces", "parse"}
    scored = {"prompt": "x" * 2000, "max_tokens": 1, "echo": True, "logprobs": 20, "guided_choice": ["a", "b"]}
    assert (await server.http.post("/v1/completions", json=scored)).status_code == 200
    assert (await server.chat()).status_code == 200
    assert (await server.complete()).status_code == 200
    loop = threading.current_thread().name
    # Short bodies are parsed and built at once: a thread would cost more.
    at_once = {name: threads - {loop} if name in ("parse", "whole_body") else threads
               for name, threads in tokenizer.threads.items()}  # fmt: skip
    assert at_once == {
        "tokenize": {"headrace-short_0", "headrace-long_0"},
        "render": {"headrace-short_0", "headrace-long_0"},
        "pieces": {"headrace-long_0"},
        "parse": {"headrace-long_0"},
        "compile": {"headrace-grammar_0"},
        "whole_body": {"headrace-long_0"},
    }


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_everything_else_continues_while_a_huge_prompt_is_processed(
    watched: tuple[Any, Watched], path: str
) -> None:
    server, tokenizer = watched
    what: dict[str, Any] = {"prompt": MEGABYTE}
    if path == "/v1/chat/completions":
        what = {"messages": [{"role": "user", "content": MEGABYTE}]}
    tokenizer.go_on.clear()
    huge = asyncio.create_task(server.http.post(path, json=what))
    try:
        await asyncio.to_thread(tokenizer.begun.wait)
        # Work on the huge prompt is now held up. Everything else continues:
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
        *_, last = await server.events("/v1/completions", **body)
        assert last["choices"][0]["finish_reason"] == "length"
        assert (await server.http.get("/health/ready")).status_code == 200
        assert (await server.complete()).status_code == 200, "a short prompt does not wait for a long one"
        assert (await server.chat()).status_code == 200
        assert not huge.done()
    finally:
        tokenizer.go_on.set()
    assert (await huge).status_code == (200 if path == "/tokenize" else 400)
