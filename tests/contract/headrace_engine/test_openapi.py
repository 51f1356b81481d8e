"""The published description, and a generator of requests that follows it against the real server."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace_engine.http.auth import OPEN_PATHS, ApiKeys
from headrace_engine.openai.routes import OPERATIONS

Serve = Any
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
    "ignored_auth",
)  # fmt: skip


async def document(server: Any) -> Any:
    answer = await server.http.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


async def test_every_route_is_described_with_its_body_and_its_errors(serve: Serve) -> None:
    server = await serve()
    found = await document(server)
    assert found["openapi"].startswith("3.1")
    for route in OPERATIONS:
        operation = found["paths"][route.path][route.method.lower()]
        assert {"200", "400", "503"} <= set(operation["responses"])
        if route.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            body = found["components"]["schemas"][schema.rsplit("/", 1)[1]]
            assert set(body["properties"]) == {
                field.alias or name for name, field in route.body.model_fields.items()
            }, route.path
    error = found["paths"]["/v1/completions"]["post"]["responses"]["429"]
    assert "Retry-After" in error["headers"]


async def test_no_other_page_is_published(serve: Serve) -> None:
    server = await serve()
    for path in ("/docs", "/redoc"):
        assert (await server.http.get(path)).status_code == 404
        assert (await server.admin.get(path)).status_code == 404
    assert (await server.admin.get("/openapi.json")).status_code == 404


async def test_references_lead_somewhere(serve: Serve) -> None:
    server = await serve()
    found = await document(server)

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    names = set(found["components"]["schemas"])
    assert {name.removeprefix("#/components/schemas/") for name in references(found)} <= names


async def test_keys_are_described_where_they_are_needed(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k:sk-1")
    server = await serve(http={"keys": ApiKeys(tmp_path / "keys")})
    found = await document(server)
    needs = {
        path for path, item in found["paths"].items() for operation in item.values() if operation["security"]
    }  # fmt: skip
    assert needs == {route.path for route in OPERATIONS}
    assert set(found["paths"]) - needs == OPEN_PATHS
    assert "401" in found["paths"]["/tokenize"]["post"]["responses"]


@pytest.mark.timeout(900)
async def test_generated_requests_get_what_is_described_and_never_a_5xx(serve: Serve, tmp_path: Path) -> None:
    """A short run; the nightly run has 2,000 requests for each operation."""
    nightly = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
    (tmp_path / "keys").write_text("k:sk-1")
    server = await serve(http={"keys": ApiKeys(tmp_path / "keys")}, max_model_len=64)
    limits = ("--max-examples", "2000") if nightly else ("--max-examples", "10", "--max-time", "40")
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "schemathesis"), "run", server.url + "/openapi.json", *limits,
        "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--header", "Authorization: Bearer sk-1",
        "--seed", "1", "--workers", "1", "--generation-database", "none", "--request-timeout", "60", "--no-shrink",
        "--suppress-health-check", "all", "--warnings", "off", "--no-color",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()[-8000:]
    assert b"Tested: " + str(len(OPERATIONS) + len(OPEN_PATHS) - 1).encode() in said, said.decode()[-8000:]
    await server.idle()
    assert server.engine.loop.stats.blocks_free == server.engine.loop.stats.blocks_total
    answer = await server.http.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"Authorization": "Bearer sk-1"}
    )
    assert answer.status_code == 200
