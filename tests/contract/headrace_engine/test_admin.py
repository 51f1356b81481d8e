"""`/admin/config`: authorized, atomic, versioned."""

from typing import Any

import pytest

from headrace_core.evidence.slo import SloSet
from headrace_core.knobs.table import KNOBS

Serve = Any
AUTH = {"Authorization": "Bearer s3cret"}


async def patch(server: Any, **body: Any) -> Any:
    return await server.admin.patch("/admin/config", json=body, headers=AUTH)


async def test_get_describes_every_knob(serve: Serve) -> None:
    server = await serve(slo=SloSet(ttft_seconds=0.5))
    body = (await server.admin.get("/admin/config", headers=AUTH)).json()
    assert body["generation"] == 1
    assert body["revision"] == "r1"
    assert [knob["name"] for knob in body["knobs"]] == [knob.name for knob in KNOBS]
    assert set(body["config"]) == {knob.name for knob in KNOBS}
    by_name = {knob["name"]: knob for knob in body["knobs"]}
    assert by_name["max_num_seqs"]["ceiling"] == 256
    assert by_name["block_size"]["class"] == "restart"
    assert body["config"]["max_model_len"] == 2048
    assert (body["device"], body["dtype"], body["pretend_gpu"]) == ("cpu", "float32", False)
    assert body["slo"]["ttft_seconds"] == 0.5
    assert body["started_at"] > 1e9


async def test_the_admin_port_answers_head_and_names_other_methods(serve: Serve) -> None:
    server = await serve()
    head = await server.admin.head("/admin/config", headers=AUTH)
    assert (head.status_code, head.content) == (200, b"")
    assert (await server.admin.head("/admin/config")).status_code == 401
    refused = await server.admin.delete("/admin/explain", headers=AUTH)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_a_change_is_in_force_when_the_answer_comes(serve: Serve) -> None:
    server = await serve()
    body = (await patch(server, knobs={"prefill_chunk_size": 32, "decode_ratio": 0.25}, revision="r2")).json()
    assert (body["generation"], body["revision"]) == (2, "r2")
    assert body["config"]["prefill_chunk_size"] == 32
    assert server.metric("headrace:config_generation") == 2
    same = (await patch(server, knobs={"prefill_chunk_size": 32}, revision="r2", if_generation=2)).json()
    assert same["generation"] == 2
    assert (await patch(server, revision="r3")).json()["generation"] == 3
    assert server.metric("headrace:config_info", knob="decode_ratio", value="0.25", revision="r3") == 1


async def test_a_change_is_all_or_nothing(serve: Serve) -> None:
    server = await serve()
    answer = await patch(
        server, knobs={"decode_ratio": 0.5, "block_size": 8, "max_num_seqs": 9999, "wombat": 1, "seed": 2}, revision="x"
    )
    assert answer.status_code == 422
    body = answer.json()
    assert {"block_size", "max_num_seqs", "wombat", "seed"} <= {item["knob"] for item in body["problems"]}
    assert body["error"]["code"] == "config_refused"
    assert body["error"]["param"] == body["problems"][0]["knob"]
    state = (await server.admin.get("/admin/config", headers=AUTH)).json()
    assert (state["generation"], state["revision"], state["config"]["decode_ratio"]) == (1, "r1", 0.0)
    above = await patch(server, knobs={"max_num_batched_tokens": 512})
    assert "boot value" in above.json()["problems"][0]["message"]


async def test_a_stale_generation_is_a_conflict(serve: Serve) -> None:
    server = await serve()
    assert (await patch(server, knobs={"decode_ratio": 0.1}, if_generation=1)).status_code == 200
    answer = await patch(server, knobs={"decode_ratio": 0.2}, if_generation=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stale_generation")


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}])
async def test_without_the_token_there_is_no_answer(serve: Serve, header: dict[str, str]) -> None:
    server = await serve()
    assert (await server.admin.get("/admin/config", headers=header)).status_code == 401
    assert (await server.admin.patch("/admin/config", json={}, headers=header)).status_code == 401


async def test_without_a_token_and_off_loopback_admin_is_off(serve: Serve) -> None:
    server = await serve(token=None)  # the fixture then says that the server is not on loopback
    answer = await server.admin.get("/admin/config", headers=AUTH)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_off")


async def test_admin_routes_are_not_on_the_serving_port(serve: Serve) -> None:
    server = await serve()
    assert (await server.http.get("/admin/config", headers=AUTH)).status_code == 404


async def test_the_slo_set_changes_with_the_knobs_as_one_generation(serve: Serve) -> None:
    server = await serve(slo=SloSet(ttft_seconds=0.5))
    slo = {"ttft_seconds": 0.037, "e2e_seconds": 3600}
    body = (await patch(server, slo=slo, knobs={"decode_ratio": 0.25}, revision="r2")).json()
    assert (body["generation"], body["revision"], body["config"]["decode_ratio"]) == (2, "r2", 0.25)
    assert (body["slo"]["ttft_seconds"], body["slo"]["e2e_seconds"], body["slo"]["itl_seconds"]) == (0.037, 3600, None)
    await server.complete()
    assert server.metric("headrace:ttft_seconds_bucket", le="0.037", config_generation="2", revision="r2") <= 1
    assert server.metric("headrace:slo_requests_total", config_generation="2") >= 1
    same = (await patch(server, slo=slo)).json()
    assert same["generation"] == 2, "what changes nothing is no new generation"
    kept = (await patch(server, knobs={"decode_ratio": 0.5})).json()
    assert (kept["generation"], kept["slo"]["ttft_seconds"]) == (3, 0.037)
    gone = (await patch(server, slo=None)).json()
    assert (gone["generation"], gone["slo"]) == (4, None)
    assert (await server.admin.get("/admin/config", headers=AUTH)).json()["slo"] is None


@pytest.mark.parametrize(
    ("slo", "words"),
    [({"wombat": 1}, "unknown wombat"), ({"ttft_seconds": -1}, "ttft_seconds"), ({"ttft_seconds": "1"}, "ttft_seconds"),
     ({"ttft_seconds": True}, "ttft_seconds"), ({"itl_percentile": 101}, "itl_percentile"),
     ({"ttft_seconds": 10**400}, "ttft_seconds: must be a number of seconds above 0")],
)  # fmt: skip
async def test_a_wrong_slo_changes_nothing_and_every_problem_is_listed(
    serve: Serve, slo: dict[str, Any], words: str
) -> None:
    server = await serve(slo=SloSet(ttft_seconds=0.5))
    answer = await patch(server, slo=slo, knobs={"decode_ratio": 7, "seed": 3}, revision="r2")
    assert answer.status_code == 422
    body = answer.json()
    assert body["problems"][0]["knob"] == "slo"
    assert {"decode_ratio", "seed"} <= {problem["knob"] for problem in body["problems"]}
    assert words in body["problems"][0]["message"]
    assert len(body["problems"][0]["message"]) < 200, "not all of what was sent"
    now = (await server.admin.get("/admin/config", headers=AUTH)).json()
    assert (now["generation"], now["revision"], now["slo"]["ttft_seconds"]) == (1, "r1", 0.5)
    assert (await patch(server, slo=slo, knobs={"decode_ratio": 0.5})).status_code == 422
    half = await patch(server, slo={"ttft_seconds": 1}, knobs={"seed": 3})
    assert half.status_code == 422
    assert (await server.admin.get("/admin/config", headers=AUTH)).json()["slo"]["ttft_seconds"] == 0.5


@pytest.mark.parametrize(
    "raw",
    [b"{", b'{"knobs": 5}', b'{"wombat": 1}', b'{"if_generation": "1"}', b"[]", b'{"slo": 5}', b'{"slo": []}',
     b'{"revision": "a\\nb"}', b'{"revision": "\\ud800"}', b'{"knobs": {"decode_ratio": NaN}}', b"\xff",
     b'{"revision": "' + b"x" * 257 + b'"}', b'{"if_generation": 1' + b"0" * 5000 + b"}", b"[" * 100_000],
)  # fmt: skip
async def test_a_malformed_patch_is_a_400(serve: Serve, raw: bytes) -> None:
    server = await serve()
    answer = await server.admin.patch("/admin/config", content=raw, headers=AUTH)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
