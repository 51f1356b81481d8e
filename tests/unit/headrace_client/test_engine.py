"""The client of the engine's admin port."""

from typing import Any

import aiohttp
import pytest

from headrace_client.engine import EngineAdmin
from headrace_client.errors import (
    EngineCallError,
    EngineDenied,
    EngineRefused,
    EngineUnavailable,
    StaleGeneration,
)

STATE = {
    "generation": 3,
    "revision": "r1",
    "config": {"max_num_seqs": 8},
    "knobs": [{"name": "max_num_seqs", "class": "hot", "ceiling": 256}, {"name": "seed", "ceiling": None}],
    "device": "cpu",
    "dtype": "float32",
    "pretend_gpu": True,
    "started_at": 12.5,
    "slo": None,
}


async def test_get_config(double: Any) -> None:
    double.then(double.json(STATE))
    async with EngineAdmin(double.url + "/", "secret") as admin:
        state = await admin.get_config()
    assert (state.generation, state.config, state.pretend_gpu, state.slo) == (3, {"max_num_seqs": 8}, True, None)
    assert [state.ceiling(name) for name in ("max_num_seqs", "seed", "x")] == [256, None, None]
    assert double.seen[0].headers["Authorization"] == "Bearer secret"
    assert double.seen[0].path == "/admin/config"


async def test_patch_sends_only_what_is_given(double: Any) -> None:
    double.then(*[double.json(STATE)] * 4)
    async with aiohttp.ClientSession() as session:
        admin = EngineAdmin(double.url, session=session)
        await admin.patch_config({"max_num_seqs": 4})
        await admin.patch_config({"preemptible": False}, revision="r2", if_generation=3)
        await admin.patch_config({}, slo={"ttft_seconds": 1.0})
        await admin.patch_config({}, slo=None)
        await admin.close()
        assert not session.closed
    assert double.seen[0].body == {"knobs": {"max_num_seqs": 4}}
    assert double.seen[1].body == {"knobs": {"preemptible": False}, "revision": "r2", "if_generation": 3}
    assert [double.seen[at].body["slo"] for at in (2, 3)] == [{"ttft_seconds": 1.0}, None]
    assert "Authorization" not in double.seen[0].headers


async def test_explain_asks_for_one_request(double: Any) -> None:
    told = {"request": "a b", "calls": [], "generations": [{"request_id": "a b"}]}
    double.then(double.json(told), double.json({"error": {"message": "no request 'x' is known"}}, 404), double.json({}))
    async with EngineAdmin(double.url, "secret") as admin:
        assert await admin.explain("a b") == told
        with pytest.raises(EngineCallError, match=r"HTTP 404: no request 'x' is known"):
            await admin.explain("x")
        with pytest.raises(EngineCallError, match="not an engine's answer"):
            await admin.explain("x")
    assert double.seen[0].path == "/admin/explain"
    assert double.seen[0].headers["Authorization"] == "Bearer secret"


async def test_a_refusal_lists_every_knob(double: Any) -> None:
    problems = [{"knob": "max_num_seqs", "message": "exceeds the boot value"}, {"knob": "dtype", "message": "not hot"}]
    body = {"error": {"message": "config refused", "code": "config_refused"}, "problems": problems}
    double.then(double.json(body, 422))
    async with EngineAdmin(double.url) as admin:
        with pytest.raises(EngineRefused, match="HTTP 422: config refused") as refused:
            await admin.patch_config({"max_num_seqs": 10**6})
    assert [str(problem) for problem in refused.value.problems] == [
        "max_num_seqs: exceeds the boot value",
        "dtype: not hot",
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, EngineDenied),
        (403, EngineDenied),
        (409, StaleGeneration),
        (500, EngineUnavailable),
        (503, EngineUnavailable),
        (404, EngineCallError),
    ],
)
async def test_statuses(double: Any, status: int, kind: type[EngineCallError]) -> None:
    double.then(double.json({"error": {"message": "why"}}, status))
    async with EngineAdmin(double.url) as admin:
        with pytest.raises(EngineCallError, match=f"PATCH {double.url}/admin/config: HTTP {status}: why") as failed:
            await admin.patch_config({})
    assert type(failed.value) is kind


async def test_no_answer() -> None:
    async with EngineAdmin("http://127.0.0.1:1") as admin:
        with pytest.raises(EngineUnavailable, match=r"GET http://127.0.0.1:1/admin/config: no answer"):
            await admin.get_config()


async def test_the_port_of_another_server_is_an_error(double: Any) -> None:
    double.then(double.json({"hello": 1}))
    async with EngineAdmin(double.url) as admin:
        with pytest.raises(EngineCallError, match="not an engine's answer"):
            await admin.get_config()
