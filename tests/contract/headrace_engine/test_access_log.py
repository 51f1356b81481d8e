"""One log line for each call, request ids, and the server's headers in answers."""

import asyncio
import dataclasses
import json
import logging
from typing import Any

import httpx
import pytest

from headrace_core.json_log import JsonFormatter
from headrace_engine.http.calls import KEPT_CALLS, MAX_REQUEST_ID, CallRegistry
from headrace_engine.metrics.generation_record import GenerationRecord

Serve = Any
AUTH = {"Authorization": "Bearer s3cret"}
CHAT = {"messages": [{"role": "user", "content": "tell me a secret"}], "max_tokens": 3, "temperature": 0}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The access log as a program reads it."""
    caplog.set_level(logging.INFO, "headrace_engine.access")

    def read() -> list[dict[str, Any]]:
        records = [record for record in caplog.records if record.name == "headrace_engine.access"]
        return [json.loads(JsonFormatter().format(record)) for record in records]

    return read


async def logged(lines: Any, count: int) -> list[dict[str, Any]]:
    """The log once it has `count` lines: a line is written after the client has its answer."""
    while len(lines()) < count:
        await asyncio.sleep(0.005)
    assert len(lines()) == count
    return list(lines())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_line_of_a_completion(serve: Serve, lines: Any, stream: bool) -> None:
    server = await serve()
    body = {"prompt": ["hello", "you"], "max_tokens": 4, "ignore_eos": True, "stream": stream}
    answer = await server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    (line,) = await logged(lines, 1)
    assert line["logger"] == "headrace_engine.access"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (8, 0, 8)
    assert line["finish_reasons"] == ["length", "length"]
    assert (line["request_id"], line["client"], line["key"]) == ("mine-1", "127.0.0.1", None)
    assert (line["generation"], line["revision"]) == (1, "r1")
    first = answer.json() if not stream else json.loads(answer.text.split("\n\n")[0].removeprefix("data: "))
    assert line["call_id"] == first["id"]
    assert 0 < line["ttft"] <= line["seconds"]


async def test_no_prompt_and_no_output_is_logged(serve: Serve, lines: Any) -> None:
    server = await serve()
    answer = await server.http.post("/v1/chat/completions?key=in-the-query", json=CHAT)
    (line,) = await logged(lines, 1)
    text = json.dumps(line)
    assert "secret" not in text
    assert "in-the-query" not in text
    assert answer.json()["choices"][0]["message"]["content"] not in text
    assert not {"body", "outputs"} & set(line)


async def test_prompts_and_outputs_are_logged_if_asked_for(serve: Serve, lines: Any) -> None:
    server = await serve(http={"keep_content": True})
    answer = await server.http.post("/v1/chat/completions", json=CHAT)
    big = await server.http.post("/v1/completions", content=b" " * 200_000 + b"{")
    line, refused = await logged(lines, 2)
    assert json.loads(line["body"]) == CHAT
    assert line["outputs"] == [answer.json()["choices"][0]["message"]["content"]]
    assert big.status_code == refused["status"] == 400
    assert len(refused["body"]) == 64 << 10


async def test_refusals_have_their_code_and_no_tokens(serve: Serve, lines: Any) -> None:
    server = await serve()
    await server.complete(model="other")
    await server.http.get("/nowhere")
    await server.http.get("/v1/completions")
    got = await logged(lines, 3)
    assert [(line["status"], line["error"]) for line in got] == [
        (404, "model_not_found"), (404, "unknown_route"), (405, "wrong_method"),
    ]  # fmt: skip
    assert all("call_id" not in line for line in got)


async def test_a_call_that_the_scheduler_refused_is_logged_without_generations(
    serve: Serve, lines: Any, gate: Any
) -> None:
    server = await serve(max_num_seqs=1, max_queue_len=0)
    steps = gate(server)
    first = asyncio.create_task(server.complete(max_tokens=2, ignore_eos=True))
    await steps.begun(1)
    second = asyncio.create_task(server.complete(max_tokens=2, ignore_eos=True))
    while sum(bool(call.generations) for call in server.state.calls._live) < 2:
        await asyncio.sleep(0.002)
    steps.open()
    assert ((await first).status_code, (await second).status_code) == (200, 429)
    by_status = {line["status"]: line for line in await logged(lines, 2)}
    assert by_status[429]["error"] == "queue_full"
    assert "call_id" not in by_status[429]
    assert by_status[200]["output_tokens"] == 2


async def test_probes_are_not_logged_but_admin_calls_are(serve: Serve, lines: Any) -> None:
    server = await serve()
    for path in ("/health/live", "/health/ready", "/metrics", "/version"):
        await server.http.get(path)
    await server.admin.patch("/admin/config", json={"knobs": {"decode_ratio": 0.5}}, headers=AUTH)
    (line,) = await logged(lines, 1)
    assert (line["method"], line["path"], line["generation"]) == ("PATCH", "/admin/config", 2)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_left_is_a_499(serve: Serve, lines: Any, stream: bool) -> None:
    server = await serve()
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    call = asyncio.create_task(server.http.post("/v1/completions", json=body))
    while not server.engine.loop.stats.tokens_decode:
        await asyncio.sleep(0.002)
    call.cancel()
    (line,) = await logged(lines, 1)
    assert (line["status"], line["finish_reasons"]) == (499, ["abort"])
    assert 0 < line["output_tokens"] < 2000


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_a_499_and_no_error(
    serve: Serve, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    while not len(server.state.calls):
        await asyncio.sleep(0.002)
    writer.close()
    (line,) = await logged(lines, 1)
    assert line["status"] == 499
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Request ids


async def test_a_sane_id_is_kept_and_otherwise_one_is_made(serve: Serve, lines: Any) -> None:
    server = await serve()
    sane = ["a", "x" * MAX_REQUEST_ID, "with space", "{}'\"<>&"]
    insane: list[str | bytes] = ["", "x" * (MAX_REQUEST_ID + 1), "tab\tinside", b"\xff\xfe", "ümlaut".encode()]
    for given in [*sane, *insane]:
        answer = await server.http.get("/v1/models", headers={"X-Request-Id": given})
        echoed = answer.headers["x-request-id"]
        assert (echoed == given) is (given in sane), given
        assert echoed
    made = [line["request_id"] for line in await logged(lines, len(sane) + len(insane))][len(sane) :]
    assert len(set(made)) == len(insane)
    assert all(name.startswith("req-") and len(name) == 36 for name in made)


async def test_every_answer_has_an_id_including_refusals_and_probes(serve: Serve) -> None:
    server = await serve()
    calls = [
        server.http.get("/health/live"),
        server.http.get("/nowhere"),
        server.http.post("/v1/completions", content=b"{"),
    ]
    ids = [(await call).headers["x-request-id"] for call in calls]
    assert len(set(ids)) == 3


async def test_two_concurrent_calls_with_one_id_are_both_answered(serve: Serve, lines: Any) -> None:
    server = await serve()
    alone = [(await server.complete(prompt=text, max_tokens=30)).json()["choices"][0]["text"] for text in "ab"]
    headers = {"X-Request-Id": "the-same"}

    async def ask(prompt: str) -> Any:
        body = {"prompt": prompt, "max_tokens": 30, "temperature": 0}
        return await server.http.post("/v1/completions", json=body, headers=headers)

    answers = await asyncio.gather(*(ask(text) for text in "abab"))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.json()["choices"][0]["text"] for answer in answers] == alone * 2
    assert {answer.headers["x-request-id"] for answer in answers} == {"the-same"}
    assert len({answer.json()["id"] for answer in answers}) == 4, "the engine's ids are its own"
    assert [line["request_id"] for line in (await logged(lines, 6))[2:]] == ["the-same"] * 4


# Headers


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_names_the_config_that_its_call_was_admitted_under(serve: Serve, stream: bool) -> None:
    server = await serve()
    call = asyncio.create_task(server.complete(max_tokens=400, ignore_eos=True, stream=stream))
    while not server.engine.loop.stats.running:
        await asyncio.sleep(0.002)
    await server.admin.patch("/admin/config", json={"knobs": {"decode_ratio": 0.1}, "revision": "r2"}, headers=AUTH)
    before, after = await call, await server.complete()
    named = [(item.headers["x-headrace-generation"], item.headers["x-headrace-revision"]) for item in (before, after)]
    assert named == [("1", "r1"), ("2", "r2")]


async def test_any_revision_can_be_a_header(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve()
    for revision, seen in (("a b/c:1", "a b/c:1"), ("zwölf", "zw%C3%B6lf"), ("", None)):
        body = {"revision": revision}
        assert (await server.admin.patch("/admin/config", json=body, headers=AUTH)).status_code == 200
        answer = await server.complete()
        assert answer.status_code == 200
        assert answer.headers.get("x-headrace-revision") == seen
    odd = dataclasses.replace(server.engine.loop.state, revision="a\r\nX-Evil: 1\ud800")  # as engine.json could have it
    monkeypatch.setattr(type(server.engine.loop), "state", odd)
    answer = await server.complete()
    assert answer.headers["x-headrace-revision"] == "a%0D%0AX-Evil: 1?"
    assert "x-evil" not in answer.headers


# Books


async def test_ten_thousand_finished_calls_leave_no_state_behind(serve: Serve) -> None:
    """The HTTP side's records at full number; a few real calls show that every call uses them."""
    calls = CallRegistry()
    for number in range(10_000):
        call = calls.begin(method="POST", path="/", client="", request_id=str(number))
        call.generations.append(_generation(f"cmpl-{number}-0"))
        calls.end(call)
    assert (len(calls), len(calls._past)) == (0, KEPT_CALLS)
    assert calls.find("9999")[0].generations[0].id == "cmpl-9999-0"
    assert calls.find("10") == []
    server = await serve()
    for _ in range(20):
        assert (await server.complete(max_tokens=1)).status_code == 200
    await server.idle()
    while len(server.state.calls):
        await asyncio.sleep(0.002)
    assert server.engine.loop._live == {}
    assert server.engine.loop._scheduler.state.live == {}
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total


def _generation(name: str) -> GenerationRecord:
    return GenerationRecord(id=name, arrival=0, prompt_tokens=1, max_tokens=1)
