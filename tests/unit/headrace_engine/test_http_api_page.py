"""`docs/http-api.md` tells of every route, field, limit and error code."""

import re
from pathlib import Path

import pytest

from headrace_engine import openai_fields as fields
from headrace_engine.openai_api import ROUTES, Route
from headrace_engine.openai_schema import NEUTRAL

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "http-api.md").read_text()
SOURCES = ROOT / "engine_image" / "headrace_engine"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_routes_and_their_fields(route: Route) -> None:
    assert f"{route.method} {route.path}" in PAGE
    missing = [name for name in (route.body.model_fields if route.body else ()) if f"`{name}`" not in PAGE]
    assert missing == []


def test_what_is_refused_and_the_limits() -> None:
    assert [name for name in NEUTRAL if f"`{name}`" not in PAGE] == []
    for limit in (fields.MAX_STOPS, fields.MAX_STOP_CHARS, fields.MAX_STOP_IDS, fields.MAX_BIASES, fields.MAX_CHOICES):
        assert str(limit) in PAGE


def test_error_codes() -> None:
    admin = {SOURCES / "admin.py"}  # another port
    texts = [path.read_text() for path in sorted({*SOURCES.glob("*.py")} - admin)]
    codes = {code for text in texts for code in re.findall(r'code="([a-z_]+)"', text)} | set(fields.CODES.values())
    assert len(codes) > 15
    assert sorted(code for code in codes if f"`{code}`" not in PAGE) == []
