"""`docs/http-api.md` names every route, field, limit and error code."""

import re
from pathlib import Path

import pytest

from headrace_engine.openai import fields
from headrace_engine.openai.routes import OPERATIONS, Operation
from headrace_engine.openai.schema import NEUTRAL

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "http-api.md").read_text()
SOURCES = ROOT / "engine_image" / "headrace_engine"


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: route.path)
def test_routes_and_their_fields(route: Operation) -> None:
    assert f"{route.method} {route.path}" in PAGE
    missing = [name for name in (route.body.model_fields if route.body else ()) if f"`{name}`" not in PAGE]
    assert missing == []


def test_refused_fields_and_limits() -> None:
    assert [name for name in NEUTRAL if f"`{name}`" not in PAGE] == []
    for limit in (fields.MAX_STOPS, fields.MAX_STOP_CHARS, fields.MAX_STOP_IDS, fields.MAX_BIASES, fields.MAX_CHOICES):
        assert str(limit) in PAGE


def test_error_codes() -> None:
    admin = {SOURCES / "http" / "admin.py"}  # another port
    texts = [path.read_text() for path in sorted({*SOURCES.rglob("*.py")} - admin)]
    codes = {code for text in texts for code in re.findall(r'code="([a-z_]+)"', text)} | set(fields.CODES.values())
    assert len(codes) > 15
    assert sorted(code for code in codes if f"`{code}`" not in PAGE) == []
