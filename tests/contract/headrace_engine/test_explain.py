"""`/admin/explain` and `headrace explain request`: one request's story, by any of its names."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

Serve = Any
AUTH = {"Authorization": "Bearer s3cret"}


async def explain(server: Any, name: str) -> Any:
    return await server.admin.get("/admin/explain", params={"request": name}, headers=AUTH)


async def test_a_call_is_found_by_each_of_its_names_and_lists_all_its_generations(serve: Serve) -> None:
    server = await serve(enable_prefix_caching=False, prefill_chunk_size=4)
    body = {"prompt": ["hello", "other"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = await server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    call_id = answer.json()["id"]
    for name in ("mine", call_id):
        told = (await explain(server, name)).json()
        assert told["request"] == name
        (call,) = told["calls"]
        assert (call["request_id"], call["call_id"], call["status"]) == ("mine", call_id, 200)
        assert (call["prompt_tokens"], call["output_tokens"]) == (10, 12)
        assert [item["request_id"] for item in told["generations"]] == [f"{call_id}-{at}" for at in range(4)]
    one = (await explain(server, f"{call_id}-2")).json()
    assert one["calls"] == told["calls"]
    (generation,) = one["generations"]
    assert (generation["state"], generation["prompt_tokens"], generation["output_tokens"]) == ("length", 5, 3)
    assert [chunk["tokens"] for chunk in generation["chunks"]] == [4, 1]
    assert generation["arrival"] <= generation["started"] <= generation["first_token"] <= generation["ended"]
    waited = sum(wait["seconds"] for wait in generation["waits"])
    assert waited == pytest.approx(generation["started"] - generation["arrival"])
    assert generation["sentences"][0].startswith(f"Request {call_id}-2 ended (length)")


async def test_calls_that_share_a_clients_id_are_all_listed_the_newest_first(serve: Serve) -> None:
    server = await serve()
    headers, body = {"X-Request-Id": "mine"}, {"prompt": "x", "max_tokens": 1}
    ids = [(await server.http.post("/v1/completions", json=body, headers=headers)).json()["id"] for _ in range(3)]
    told = (await explain(server, "mine")).json()
    assert [call["call_id"] for call in told["calls"]] == ids[::-1]
    assert [item["request_id"] for item in told["generations"]] == [f"{name}-0" for name in ids[::-1]]


async def test_a_request_that_waits_says_what_for(serve: Serve, gate: Any) -> None:
    server = await serve(max_num_seqs=1)
    steps = gate(server)
    calls = [asyncio.create_task(server.complete(max_tokens=5, ignore_eos=True)) for _ in range(2)]
    while sum(bool(call.generations) for call in server.state.calls._live) < 2:
        await asyncio.sleep(0.002)
    names = [call.generations[0].id for call in server.state.calls._live]
    steps.let(2)
    await steps.begun(3)
    asked = asyncio.create_task(explain(server, names[1]))
    while server.engine.loop._inbox._calls.empty():
        await asyncio.sleep(0.002)
    steps.let(1)
    told = (await asked).json()
    assert told["calls"][0]["status"] is None
    (generation,) = told["generations"]
    assert (generation["state"], generation["started"]) == ("waiting", None)
    assert "sequence_cap" in {wait["cause"] for wait in generation["waits"]}
    assert any("max_num_seqs" in sentence for sentence in generation["sentences"])
    steps.open()
    await asyncio.gather(*calls)


async def test_an_unknown_request_is_a_404_with_a_hint(serve: Serve) -> None:
    server = await serve()
    await server.complete(model="other")
    answer = await explain(server, "cmpl-nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    for hint in ("'cmpl-nobody'", "x-request-id", "1024"):
        assert hint in answer.json()["error"]["message"]
    assert (await explain(server, "")).status_code == 400
    assert (await server.admin.get("/admin/explain", headers=AUTH)).status_code == 400
    assert (await server.admin.get("/admin/explain?request=x")).status_code == 401
    assert (await server.http.get("/admin/explain?request=x")).status_code == 404


async def headrace(*arguments: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace_cli", *arguments, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=os.environ | {"COLUMNS": "120"} | env,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_prints_sentences_and_a_table_or_json(serve: Serve, tmp_path: Path) -> None:
    server = await serve(max_num_seqs=1)
    url = str(server.admin.base_url)
    (tmp_path / "token").write_text("s3cret\n")
    first = asyncio.create_task(server.complete(max_tokens=300, ignore_eos=True))
    while not server.engine.loop.stats.running:
        await asyncio.sleep(0.002)
    answer = await server.http.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers={"X-Request-Id": "mine"}
    )
    await first
    code, out, err = await headrace(
        "explain", "request", "mine", "--admin-url", url, "--token-file", str(tmp_path / "token")
    )
    assert (code, err) == (0, "")
    assert "POST /v1/completions (x-request-id mine) was answered 200" in out
    assert f"Request {answer.json()['id']}-0 ended" in out
    assert "a place among max_num_seqs" in out
    code, out, _ = await headrace(
        "explain", "request", answer.json()["id"], "--admin-url", url, "--json", HEADRACE_ADMIN_TOKEN="s3cret"
    )
    assert (code, json.loads(out)["calls"][0]["request_id"]) == (0, "mine")
    code, out, err = await headrace("explain", "request", "nobody", "--admin-url", url, HEADRACE_ADMIN_TOKEN="s3cret")
    assert (code, out) == (1, "")
    assert "no request 'nobody' is known" in err
    assert (await headrace("explain", "request", "mine", "--admin-url", url))[0] == 1
