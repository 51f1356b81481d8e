"""CORS: web pages can call only from the origins that were named; preflight requests are answered."""

from pathlib import Path
from typing import Any

from headrace_engine.http.auth import ApiKeys

Serve = Any
PAGE, OTHER = "https://chat.example.org", "https://evil.example.org"


def question(origin: str) -> dict[str, str]:
    """The preflight request of a browser before a call with a key and JSON."""
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
    }


async def test_a_named_page_may_call_and_another_may_not(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k:sk-1")
    server = await serve(http={"keys": ApiKeys(tmp_path / "keys"), "origins": [PAGE]})
    asked = await server.http.options("/v1/chat/completions", headers=question(PAGE))
    assert asked.status_code == 200, "a preflight request carries no key"
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in (await server.http.options("/", headers=question(OTHER))).headers
    key = {"Authorization": "Bearer sk-1"}
    for headers, status in ((key, 200), ({}, 401)):
        answer = await server.http.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 2}, headers=headers | {"Origin": PAGE}
        )
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE, "or the page could not read the error"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    elsewhere = await server.http.post("/v1/completions", json={"prompt": "x"}, headers=key | {"Origin": OTHER})
    assert "access-control-allow-origin" not in elsewhere.headers


async def test_a_page_reads_a_stream(serve: Serve) -> None:
    server = await serve(http={"origins": ["*"]})
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    answer = await server.http.post("/v1/completions", json=body, headers={"Origin": OTHER})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_no_page_may_call_unless_one_is_named(serve: Serve) -> None:
    server = await serve()
    assert (await server.http.options("/v1/completions", headers=question(PAGE))).status_code == 405
    assert "access-control-allow-origin" not in (await server.http.get("/v1/models", headers={"Origin": PAGE})).headers
